//! The pages in a headless Chromium, as one binary: scripted programs behind them (`scene`), the real ones, and the
//! real ones on a real engine.

mod agent;
mod engine;
mod fleet;
mod gates;
mod history;
mod keyboard;
mod login;
mod pictures;
mod real;
mod scene;
mod views;
mod warden;
