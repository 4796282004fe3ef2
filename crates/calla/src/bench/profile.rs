//! Where the time goes, as it is printed.

use std::fmt::Write as _;

use calla_engine::backend::profile::{OpProfile, Profile, StageProfile};
use serde::Serialize;

use super::STRING_GROWS;

/// Of a context's prompt, and of the tokens after it.
#[derive(Debug, Serialize)]
pub(super) struct Phases {
    pub(super) prefill: Phase,
    pub(super) decode: Phase,
}

/// Passes over so many tokens. Seconds of ops are means over the threads, so that they add up to
/// their stage's, and stages to the whole.
#[derive(Debug, Serialize)]
pub(super) struct Phase {
    tokens: usize,
    passes: u64,
    threads: usize,
    #[serde(flatten)]
    launches: Option<Launches>,
    seconds: f64,
    stages: Vec<Stage>,
}

/// Of kernels, where the device has such.
#[derive(Debug, Clone, Copy, Serialize)]
struct Launches {
    launches_pass: f64,
    /// The mean.
    us_launch: f64,
}

#[derive(Debug, Serialize)]
struct Stage {
    stage: &'static str,
    #[serde(flatten)]
    launches: Option<Launches>,
    seconds: f64,
    /// Of the whole, as an op's.
    share: f64,
    ops: Vec<Op>,
}

#[derive(Debug, Serialize)]
struct Op {
    op: &'static str,
    #[serde(flatten)]
    launches: Option<Launches>,
    seconds: f64,
    share: f64,
    /// What all threads together read and wrote while they were at it.
    gb_s: Option<f64>,
    gflop_s: Option<f64>,
}

impl Phase {
    pub(super) fn new(profile: &Profile, tokens: usize) -> Self {
        let seconds = profile.wall.as_secs_f64();
        let Profile { threads, passes, .. } = *profile;
        let launches = |ops: &[OpProfile], seconds: f64| {
            let count: u64 = ops.iter().map(|op| op.launches).sum();
            (count > 0).then(|| Launches {
                launches_pass: count as f64 / passes as f64,
                us_launch: 1e6 * seconds / count as f64,
            })
        };
        let op = |op: &OpProfile| {
            let op_seconds = op.time.as_secs_f64() / threads as f64;
            let rate = |amount: u64| (amount > 0).then(|| amount as f64 * 1e-9 / op_seconds);
            Op {
                op: op.op.name(),
                launches: launches(&[*op], op_seconds),
                seconds: op_seconds,
                share: op_seconds / seconds,
                gb_s: rate(op.bytes),
                gflop_s: rate(op.flop),
            }
        };
        let stage = |stage: &StageProfile| Stage {
            stage: stage.stage.name(),
            launches: launches(&stage.ops, stage.wall.as_secs_f64()),
            seconds: stage.wall.as_secs_f64(),
            share: stage.wall.as_secs_f64() / seconds,
            ops: stage.ops.iter().map(op).collect(),
        };
        let ops: Vec<OpProfile> =
            profile.stages.iter().flat_map(|stage| stage.ops.iter().copied()).collect();
        Self {
            tokens,
            passes,
            threads,
            launches: launches(&ops, seconds),
            seconds,
            stages: profile.stages.iter().map(stage).collect(),
        }
    }

    /// A table under a line that says of what.
    pub(super) fn write(&self, name: &str, context: usize, text: &mut String) {
        let us_token = |seconds: f64| seconds * 1e6 / self.tokens as f64;
        let rate = |rate: Option<f64>| rate.map_or(String::new(), |rate| format!("{rate:.1}"));
        let launches = |launches: Option<Launches>| {
            launches.map_or(String::new(), |Launches { launches_pass, us_launch }| {
                format!("{launches_pass:>10.1}{us_launch:>10.1}")
            })
        };
        let mut line = |line: &str| writeln!(text, "{}", line.trim_end()).expect(STRING_GROWS);
        line("");
        let of_all =
            self.launches.map_or(String::new(), |Launches { launches_pass, us_launch }| {
                format!(", {launches_pass:.1} launches a pass of {us_launch:.1} µs each")
            });
        line(&format!("{name} at {context}: {:.1} µs a token{of_all}", us_token(self.seconds)));
        let of_launches = match self.launches {
            Some(_) => "  launches   µs each",
            None => "",
        };
        line(&format!(
            "{:<10}{:<16}{:>12}{:>9}{:>8}{:>10}{of_launches}",
            "stage", "op", "µs a token", "share", "GB/s", "GFLOP/s"
        ));
        for stage in &self.stages {
            let (time, share) = (us_token(stage.seconds), 100.0 * stage.share);
            let of_launches = launches(stage.launches);
            line(&format!("{:<26}{time:>12.1}{share:>8.1}%{:>18}{of_launches}", stage.stage, ""));
            for op in &stage.ops {
                let (time, share) = (us_token(op.seconds), 100.0 * op.share);
                let (gb_s, gflop_s) = (rate(op.gb_s), rate(op.gflop_s));
                let of_launches = launches(op.launches);
                line(&format!(
                    "{:<10}{:<16}{time:>12.1}{share:>8.1}%{gb_s:>8}{gflop_s:>10}{of_launches}",
                    "", op.op
                ));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use calla_engine::backend::profile;

    use super::*;

    fn phase(launches: u64) -> Phase {
        let op = |op, ms, bytes, flop| OpProfile {
            op,
            time: Duration::from_millis(ms),
            launches,
            bytes,
            flop,
        };
        let head = StageProfile {
            stage: profile::Stage::Head,
            wall: Duration::from_millis(40),
            ops: vec![
                op(profile::Op::Logits, 60, 600_000_000, 1_200_000_000),
                op(profile::Op::Idle, 20, 0, 0),
            ],
        };
        let (wall, stages) = (Duration::from_millis(80), vec![head]);
        Phase::new(&Profile { threads: 2, passes: 4, wall, stages }, 4)
    }

    #[test]
    fn an_op_counts_as_much_as_the_mean_of_its_threads() {
        let phase = phase(0);
        let logits = &phase.stages[0].ops[0];
        let close = |a: f64, b: f64| assert!((a - b).abs() < 1e-9, "{a} {b}");
        close(phase.stages[0].share, 0.5);
        close(logits.seconds, 0.03);
        close(logits.share, 0.375);
        // 0.6 GB and 1.2 GFLOP while two threads were at it for 30 ms.
        close(logits.gb_s.expect("it reads"), 20.0);
        close(logits.gflop_s.expect("it computes"), 40.0);
        assert_eq!(phase.stages[0].ops[1].gb_s, None);
    }

    #[test]
    fn the_table_has_a_line_for_each_stage_and_op() {
        let mut text = String::new();
        phase(0).write("decode", 512, &mut text);
        let lines: Vec<Vec<&str>> =
            text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines[1].join(" "), "decode at 512: 20000.0 µs a token");
        assert_eq!(lines[3], ["head", "10000.0", "50.0%"]);
        assert_eq!(lines[4], ["logits", "7500.0", "37.5%", "20.0", "40.0"]);
        assert_eq!(lines[5], ["idle", "2500.0", "12.5%"]);
    }

    #[test]
    fn launches_are_counted_by_the_pass_and_timed_each() {
        let mut text = String::new();
        let phase = phase(8);
        phase.write("decode", 512, &mut text);
        let lines: Vec<Vec<&str>> =
            text.lines().map(|line| line.split_whitespace().collect()).collect();
        let heading = "decode at 512: 20000.0 µs a token, 4.0 launches a pass of 5000.0 µs each";
        assert_eq!(lines[1].join(" "), heading);
        assert_eq!(lines[2][8..], ["launches", "µs", "each"]);
        assert_eq!(lines[3], ["head", "10000.0", "50.0%", "4.0", "2500.0"]);
        assert_eq!(lines[4][5..], ["2.0", "3750.0"]);
        let json = serde_json::to_value(&phase).expect("numbers and words");
        assert_eq!(json["stages"][0]["ops"][0]["launches_pass"], 2.0);
        assert_eq!(json["us_launch"], 5000.0);
    }
}
