//! How far a download is, for people who watch.

use std::{
    cell::RefCell,
    io::{self, IsTerminal as _, Write as _},
    time::{Duration, Instant},
};

use crate::output;

const REDRAW: Duration = Duration::from_millis(200);
/// Time over which the shown rate is averaged.
const RATE_WINDOW_S: f64 = 5.0;
/// To the line's start, and nothing on it.
const ERASE: &str = "\r\x1b[K";

/// One line on the terminal that tells bytes, rate and time left. Elsewhere, and on one that cannot redraw,
/// it is silent.
pub(crate) struct Progress {
    on_terminal: bool,
    verbose: u8,
    state: RefCell<State>,
}

struct State {
    total_bytes: u64,
    done_bytes: u64,
    /// Bytes that came since the last redraw.
    fresh_bytes: u64,
    came_bytes: u64,
    drawn: Instant,
    rate_bytes_s: Option<f64>,
}

impl Progress {
    pub(crate) fn new(verbose: u8) -> Self {
        let state = RefCell::new(State::new());
        let on_terminal = io::stderr().is_terminal() && !output::is_dumb();
        Self { on_terminal, verbose, state }
    }

    /// Starts over with this much to do.
    pub(crate) fn begin(&self, total_bytes: u64) {
        let mut state = self.state.borrow_mut();
        *state = State { total_bytes, ..State::new() };
    }

    /// Bytes that were there already.
    pub(crate) fn found(&self, bytes: u64) {
        self.state.borrow_mut().done_bytes += bytes;
    }

    /// Bytes that turned out to be of no use.
    pub(crate) fn lost(&self, bytes: u64) {
        let mut state = self.state.borrow_mut();
        state.done_bytes = state.done_bytes.saturating_sub(bytes);
    }

    /// Bytes that have just come.
    pub(crate) fn came(&self, bytes: u64) {
        let mut state = self.state.borrow_mut();
        state.done_bytes += bytes;
        state.fresh_bytes += bytes;
        state.came_bytes += bytes;
        let elapsed = state.drawn.elapsed();
        if !self.on_terminal || elapsed < REDRAW {
            return;
        }
        state.measure(elapsed.as_secs_f64());
        // With stderr closed there is nobody to tell.
        let _ = write!(io::stderr(), "{ERASE}{}", state.line());
    }

    /// All bytes that came since the beginning.
    pub(crate) fn came_bytes(&self) -> u64 {
        self.state.borrow().came_bytes
    }

    /// Says something on a line of its own.
    pub(crate) fn note(&self, line: &str) {
        self.erase();
        output::note(self.verbose, line);
    }

    /// Takes the line away.
    pub(crate) fn erase(&self) {
        if self.on_terminal {
            let _ = write!(io::stderr(), "{ERASE}");
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.erase();
    }
}

impl State {
    fn new() -> Self {
        Self {
            total_bytes: 0,
            done_bytes: 0,
            fresh_bytes: 0,
            came_bytes: 0,
            drawn: Instant::now(),
            rate_bytes_s: None,
        }
    }

    fn measure(&mut self, elapsed_s: f64) {
        let now = self.fresh_bytes as f64 / elapsed_s;
        let weight = 1.0 - (-elapsed_s / RATE_WINDOW_S).exp();
        self.rate_bytes_s = Some(match self.rate_bytes_s {
            Some(rate) => rate + weight * (now - rate),
            None => now,
        });
        self.fresh_bytes = 0;
        self.drawn = Instant::now();
    }

    fn line(&self) -> String {
        let left_bytes = self.total_bytes.saturating_sub(self.done_bytes);
        let mut line =
            format!("{} of {}", output::size(self.done_bytes), output::size(self.total_bytes));
        if let Some(rate) = self.rate_bytes_s.filter(|rate| *rate > 0.0) {
            let left = duration(left_bytes as f64 / rate);
            line.push_str(&format!(", {}/s, {left} left", output::size(rate as u64)));
        }
        line
    }
}

/// Two units at most, as a person would say it.
fn duration(seconds: f64) -> String {
    let seconds = seconds.round() as u64;
    match (seconds / 3600, seconds / 60 % 60, seconds % 60) {
        (0, 0, s) => format!("{s} s"),
        (0, m, s) => format!("{m} min {s} s"),
        (h, m, _) => format!("{h} h {m} min"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_tells_bytes_rate_and_time_left() {
        let mut state = State {
            total_bytes: 20_000_000_000,
            done_bytes: 5_000_000_000,
            fresh_bytes: 50_000_000,
            ..State::new()
        };
        assert_eq!(state.line(), "5.00 GB of 20.00 GB");
        state.measure(1.0);
        assert_eq!(state.line(), "5.00 GB of 20.00 GB, 50.0 MB/s, 5 min 0 s left");
        // A second without a byte lowers the rate a little.
        state.measure(1.0);
        let rate = state.rate_bytes_s.expect("measured");
        assert!((40e6..42e6).contains(&rate), "{rate}");
    }

    #[test]
    fn durations_have_two_units_at_most() {
        assert_eq!(duration(59.4), "59 s");
        assert_eq!(duration(61.0), "1 min 1 s");
        assert_eq!(duration(7384.0), "2 h 3 min");
    }
}
