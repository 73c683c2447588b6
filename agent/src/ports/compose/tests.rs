//! Tests of the compose runner with small shell scripts in the place of `docker`.
