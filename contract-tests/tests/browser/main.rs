//! Tests of the pages in a headless Chromium, as one binary: with stub servers (`scene`), with the real programs, and
//! with the real programs on a real engine.

mod agent;
mod engine;
mod fleet;
mod gates;
mod history;
mod keyboard;
mod login;
mod pictures;
mod proxies;
mod real;
mod scene;
mod tabs;
mod views;
mod warden;
