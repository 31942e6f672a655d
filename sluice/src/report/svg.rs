//! A picture of admitted and rejected requests over time.

use std::fmt::Write;

use super::policy::PolicyReport;
use super::timeline::Bin;
use super::units::{grouped, instant, percentage};
use crate::replay::Replay;

const WIDTH: u64 = 960;
const HEIGHT: u64 = 160;
const MARGIN: u64 = 24;
/// The height of a policy, with its title and its times.
const ROW: u64 = HEIGHT + 70;

/// Draws a chart for each policy with requests: admitted upwards, rejected on top of them.
pub(crate) fn to_svg(replays: &[Replay]) -> String {
    let mut charts = String::new();
    let mut rows = 0;
    for replay in replays {
        for route in &replay.limited {
            for policy in route.policies.iter().filter(|policy| policy.requests() > 0) {
                let title = format!("{}: {}  {}", replay.file, route.paths.join(", "), policy.name());
                draw(&mut charts, rows * ROW, &title, policy);
                rows += 1;
            }
        }
    }
    let (width, height) = (WIDTH + 2 * MARGIN, rows.max(1) * ROW + MARGIN);
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" font-family=\"sans-serif\" \
         font-size=\"13\">\n<rect width=\"{width}\" height=\"{height}\" fill=\"#fff\"/>\n{charts}</svg>\n"
    )
}

fn draw(svg: &mut String, top: u64, title: &str, policy: &PolicyReport) {
    let timeline = &policy.timeline;
    let bins = timeline.bins();
    let most = bins.iter().map(|bin| bin.admitted + bin.rejected).max().unwrap_or(0).max(1);
    let base = top + 40 + HEIGHT;
    let share = percentage(policy.rejected, policy.requests());
    let counts = format!(
        "{} admitted, {} rejected ({share}); at most {} in {} s",
        grouped(policy.admitted),
        grouped(policy.rejected),
        grouped(most),
        timeline.width()
    );
    // A string is written to without an error.
    let _ = writeln!(svg, "<text x=\"{MARGIN}\" y=\"{}\" font-weight=\"bold\">{}</text>", top + 18, escaped(title));
    let _ = writeln!(svg, "<text x=\"{MARGIN}\" y=\"{}\" fill=\"#555\">{counts}</text>", top + 34);
    for (count, color) in [(count_all as fn(&Bin) -> u64, "#c0392b"), (count_admitted, "#2e86c1")] {
        let mut path = format!("M{MARGIN} {base}");
        for (index, bin) in bins.iter().enumerate() {
            let x = |index: usize| MARGIN + index as u64 * WIDTH / bins.len().max(1) as u64;
            let height = u64::try_from(u128::from(count(bin)) * u128::from(HEIGHT - 8) / u128::from(most)).unwrap_or(0);
            // At least a pixel, so that no count is lost.
            let y = base - if count(bin) > 0 { height.max(1) } else { 0 };
            let _ = write!(path, "L{} {y}L{} {y}", x(index), x(index + 1));
        }
        let _ = writeln!(svg, "<path d=\"{path}L{} {base}Z\" fill=\"{color}\"/>", MARGIN + WIDTH);
    }
    let end = timeline.start() + timeline.width() * bins.len() as u64;
    let time = |seconds: u64| instant(seconds.saturating_mul(1_000_000_000));
    let _ = writeln!(svg, "<text x=\"{MARGIN}\" y=\"{}\" fill=\"#555\">{}</text>", base + 16, time(timeline.start()));
    let _ = writeln!(
        svg,
        "<text x=\"{}\" y=\"{}\" fill=\"#555\" text-anchor=\"end\">{} UTC</text>",
        MARGIN + WIDTH,
        base + 16,
        time(end)
    );
}

/// Drawn first: what is not covered by the admitted requests was rejected.
const fn count_all(bin: &Bin) -> u64 {
    bin.admitted + bin.rejected
}

const fn count_admitted(bin: &Bin) -> u64 {
    bin.admitted
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
