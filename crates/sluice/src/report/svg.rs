//! A picture that shows admitted and rejected requests over time.

use std::fmt::Write;

use super::units::{grouped, instant, percentage};
use crate::counts::PolicyCounts;
use crate::counts::{Axis, Bin};
use crate::replay::Replay;

const WIDTH: u64 = 960;
const HEIGHT: u64 = 160;
/// The height of the greatest count, which leaves room for its label.
const HIGHEST: u64 = HEIGHT - 18;
const MARGIN: u64 = 24;
/// A policy's height, with its title and its times.
const ROW: u64 = HEIGHT + 70;
/// The height of the legend.
const LEGEND: u64 = 30;
const ADMITTED: &str = "#2e86c1";
const REJECTED: &str = "#c0392b";
/// The number of parts into which lines divide the time axis.
const PARTS: u64 = 4;

/// Draws a chart for each policy with requests: admitted at the bottom, rejected on top. All charts share one time
/// axis.
pub(crate) fn to_svg(replays: &[Replay]) -> String {
    let axis = super::axis(replays);
    let mut charts = legend();
    let mut rows = 0;
    for replay in replays {
        for route in &replay.limited {
            for policy in route.policies.iter().filter(|policy| policy.requests() > 0) {
                let title = format!("{}: {}  {}", replay.file, route.paths.join(", "), policy.name());
                draw(&mut charts, LEGEND + rows * ROW, &title, policy, &axis);
                rows += 1;
            }
        }
    }
    let width = WIDTH + 2 * MARGIN;
    let height = LEGEND + rows.max(1) * ROW + MARGIN;
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" font-family=\"sans-serif\" \
         font-size=\"13\">\n<rect width=\"{width}\" height=\"{height}\" fill=\"#fff\"/>\n{charts}</svg>\n"
    )
}

fn legend() -> String {
    let mut svg = String::new();
    for (left, color, word) in [(MARGIN, ADMITTED, "admitted"), (MARGIN + 110, REJECTED, "rejected")] {
        // Writing to a string cannot fail.
        let _ = writeln!(svg, "<rect x=\"{left}\" y=\"10\" width=\"12\" height=\"12\" fill=\"{color}\"/>");
        write_text(&mut svg, left + 18, 21, "fill=\"#555\"", word);
    }
    svg
}

fn draw(svg: &mut String, top: u64, title: &str, policy: &PolicyCounts, axis: &Axis) {
    let bins = policy.timeline.bins_on(axis);
    let most = bins.iter().map(count_all).max().unwrap_or(0).max(1);
    let base = top + 40 + HEIGHT;
    let share = percentage(policy.rejected, policy.requests());
    let counts = format!("{} admitted, {} rejected ({share})", grouped(policy.admitted), grouped(policy.rejected));
    write_text(svg, MARGIN, top + 18, "font-weight=\"bold\"", title);
    write_text(svg, MARGIN, top + 34, "fill=\"#555\"", &counts);
    for (count, color) in [(count_all as fn(&Bin) -> u64, REJECTED), (count_admitted, ADMITTED)] {
        let mut path = format!("M{MARGIN} {base}");
        for (index, bin) in bins.iter().enumerate() {
            let x = |index: usize| MARGIN + index as u64 * WIDTH / bins.len().max(1) as u64;
            let height = u64::try_from(u128::from(count(bin)) * u128::from(HIGHEST) / u128::from(most)).unwrap_or(0);
            // At least a pixel, so that no count is lost.
            let y = base - if count(bin) > 0 { height.max(1) } else { 0 };
            let _ = write!(path, "L{} {y}L{} {y}", x(index), x(index + 1));
        }
        let _ = writeln!(svg, "<path d=\"{path}L{} {base}Z\" fill=\"{color}\"/>", MARGIN + WIDTH);
    }
    draw_counts(svg, base - HIGHEST, &format!("{} in {} s", grouped(most), axis.width));
    draw_times(svg, base, axis);
}

/// The highest count, with its line.
fn draw_counts(svg: &mut String, y: u64, most: &str) {
    let right = MARGIN + WIDTH;
    let _ = writeln!(svg, "<line x1=\"{MARGIN}\" y1=\"{y}\" x2=\"{right}\" y2=\"{y}\" stroke=\"#bbb\"/>");
    write_text(svg, right, y - 4, "fill=\"#555\" text-anchor=\"end\"", most);
}

fn draw_times(svg: &mut String, base: u64, axis: &Axis) {
    let length = axis.end() - axis.start();
    for part in 0..=PARTS {
        let x = MARGIN + WIDTH * part / PARTS;
        let seconds = axis.start().saturating_add(length / PARTS * part + length % PARTS * part / PARTS);
        let anchor = match part {
            0 => "start",
            PARTS => "end",
            _ => "middle",
        };
        let _ = writeln!(svg, "<line x1=\"{x}\" y1=\"{base}\" x2=\"{x}\" y2=\"{}\" stroke=\"#555\"/>", base + 4);
        let zone = if part == PARTS { " UTC" } else { "" };
        let time = format!("{}{zone}", instant(seconds.saturating_mul(1_000_000_000)));
        write_text(svg, x, base + 18, &format!("fill=\"#555\" text-anchor=\"{anchor}\""), &time);
    }
}

fn write_text(svg: &mut String, x: u64, y: u64, attributes: &str, text: &str) {
    let _ = writeln!(svg, "<text x=\"{x}\" y=\"{y}\" {attributes}>{}</text>", escaped(text));
}

/// Drawn first, so the area that admitted requests do not cover shows the rejected ones.
const fn count_all(bin: &Bin) -> u64 {
    bin.admitted + bin.rejected
}

const fn count_admitted(bin: &Bin) -> u64 {
    bin.admitted
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
