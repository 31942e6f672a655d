//! The report as text.

use std::fmt::Write;

use super::compare::compare;
use super::hints::hints;
use super::plot;
use super::units::{count, grouped, instant, minute, percentage, roundest, span};
use crate::counts::Axis;
use crate::counts::LogCounts;
use crate::counts::{PolicyCounts, WithoutKey};
use crate::replay::{Replay, RouteReplay};

/// A report's settings.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Options {
    /// The share of clients, per 100,000, for which a limit is suggested.
    pub(crate) suggest: Option<u64>,
}

/// The keys that are listed.
pub(super) const TOP: usize = 10;

/// Writes the report for one configuration, or for two side by side.
pub(crate) fn print(log: &LogCounts, replays: &[Replay], options: Options) -> String {
    let mut text = String::new();
    print_log(&mut text, log);
    for hint in hints(log, replays) {
        line(&mut text, format_args!("  NOTE: {hint}"));
    }
    match replays {
        [one, other] => text.push_str(&compare(one, other, options)),
        _ => replays.iter().for_each(|replay| print_replay(&mut text, log, replay, &super::axis(replays), options)),
    }
    text
}

fn print_log(text: &mut String, log: &LogCounts) {
    line(text, format_args!("{}: {}", log.files.join(", "), count(log.lines, "line", "lines")));
    match log.span {
        Some((first, last)) => line(text, format_args!("  from {} to {} UTC", instant(first), instant(last))),
        None => line(text, format_args!("  no request")),
    }
    if let Some(first) = &log.first_unreadable {
        let count = count(log.unreadable, "line is", "lines are");
        line(
            text,
            format_args!("  {count} unreadable; the first is {}: {}", log.place_in_words(first.place), first.problem),
        );
        line(text, format_args!("    {}", first.text));
    }
    let sorted = log.disorder.sorted;
    if sorted.lines > 0 {
        let (count, furthest) = (count(sorted.lines, "line was", "lines were"), span(sorted.furthest / 1_000));
        let window = span(log.window / 1_000);
        line(
            text,
            format_args!("  {count} out of order, by up to {furthest}, and put in order (the window is {window})"),
        );
    }
    for warning in log.warnings() {
        line(text, format_args!("  WARNING: {warning}"));
    }
}

fn print_replay(text: &mut String, log: &LogCounts, replay: &Replay, axis: &Axis, options: Options) {
    line(text, format_args!("\n{}", replay.file));
    print_unlimited(text, replay);
    for route in &replay.limited {
        for policy in &route.policies {
            print_policy(text, log, route, policy, axis, options);
        }
    }
}

fn print_unlimited(text: &mut String, replay: &Replay) {
    if replay.unmatched > 0 {
        line(text, format_args!("  {} to no route of the file", count(replay.unmatched, "request", "requests")));
    }
    if replay.unlimited > 0 {
        line(text, format_args!("  {} to routes without a policy", count(replay.unlimited, "request", "requests")));
    }
}

fn print_policy(
    text: &mut String,
    log: &LogCounts,
    route: &RouteReplay,
    policy: &PolicyCounts,
    axis: &Axis,
    options: Options,
) {
    let words = &policy.words;
    line(text, format_args!("\n{}  {}", route.paths.join(", "), words.name));
    line(text, format_args!("  {}: {}", words.who, words.what));
    line(text, format_args!("  when full: {}", words.when_full));
    for (label, value) in rows(policy) {
        line(text, format_args!("  {label:<15}{value}"));
    }
    if let Some(first) = &policy.first {
        let (time, place) = (instant(first.nanos), log.place_in_words(first.place));
        line(text, format_args!("  first rejected {time}, {place}: {}", first.key));
        line(text, format_args!("  worst minutes  {}", worst_minutes(policy)));
        print_offenders(text, policy);
    }
    if policy.requests() > 0 {
        print_plot(text, policy, axis);
    }
    if let Some(per_100_000) = options.suggest {
        print_suggestion(text, policy, per_100_000);
    }
}

fn print_plot(text: &mut String, policy: &PolicyCounts, axis: &Axis) {
    let plot = plot::plot(&policy.timeline.bins_on(axis));
    line(text, format_args!("  over time      admitted {}", plot.admitted));
    if policy.rejected > 0 {
        line(text, format_args!("                 rejected {}", plot.rejected));
    }
    let width = span(axis.width.saturating_mul(plot.bins_per_column).saturating_mul(1_000_000));
    let start = instant(axis.start().saturating_mul(1_000_000_000));
    let most = count(plot.most, "request", "requests");
    line(text, format_args!("                 a column is {width}, the first from {start} on; █ is {most}"));
}

/// The minutes with the most rejections, each with its date if that differs from the one before.
fn worst_minutes(policy: &PolicyCounts) -> String {
    let mut date = String::new();
    let mut minutes = Vec::new();
    for worst in policy.minutes.worst() {
        let time = minute(worst.minute);
        let shown = match time.split_once(' ') {
            Some((day, clock)) if *day == date => clock.to_owned(),
            _ => time.clone(),
        };
        date = time.split_once(' ').map_or_else(String::new, |(day, _)| day.to_owned());
        minutes.push(format!("{shown} ({})", grouped(worst.rejected)));
    }
    minutes.join(", ")
}

/// The rows for a policy: each has a label and a count.
pub(super) fn rows(policy: &PolicyCounts) -> Vec<(&'static str, String)> {
    let requests = policy.requests();
    let mut rows = vec![("requests", grouped(requests))];
    if requests > 0 {
        let (clients, affected) = policy.clients();
        let about = if policy.keys.is_exact() { "" } else { "about " };
        let share = |part| format!("{} ({})", grouped(part), percentage(part, requests));
        rows.push(("admitted", share(policy.admitted)));
        rows.push(("rejected", share(policy.rejected)));
        rows.push(("clients", format!("{about}{}, {about}{} of them rejected", grouped(clients), grouped(affected))));
    }
    if !policy.waits.is_empty() {
        rows.push(("delayed", format!("{}: {}", grouped(policy.waits.len()), waits(policy))));
    }
    let WithoutKey { rejected, not_limited, without_address } = policy.without_key;
    let counts = [
        (rejected, "rejected with 400"),
        (not_limited, "not limited"),
        (without_address, "not replayed, since the log lacks their address"),
    ];
    let counts = counts.into_iter().filter(|(count, _)| *count > 0);
    let counts: Vec<_> = counts.map(|(count, what)| format!("{} {what}", grouped(count))).collect();
    if !counts.is_empty() {
        rows.push(("without a key", counts.join(", ")));
    }
    rows
}

fn waits(policy: &PolicyCounts) -> String {
    let [p50, p95, p99] = quantiles(policy).map(span);
    format!("p50 {p50}, p95 {p95}, p99 {p99}, most {}", span(longest(policy)))
}

/// The median, the 95th and the 99th percentile of the waits, in microseconds, to three digits.
pub(super) fn quantiles(policy: &PolicyCounts) -> [u64; 3] {
    [50.0, 95.0, 99.0].map(|percent| wait(policy, policy.waits.value_at_percentile(percent)))
}

/// The longest wait.
pub(super) fn longest(policy: &PolicyCounts) -> u64 {
    wait(policy, policy.waits.max())
}

/// The histogram merges a range of waits. The roundest wait in it stands for all, because most waits are whole seconds.
fn wait(policy: &PolicyCounts, micros: u64) -> u64 {
    roundest(policy.waits.lowest_equivalent(micros), policy.waits.highest_equivalent(micros))
}

fn print_offenders(text: &mut String, policy: &PolicyCounts) {
    let missed = policy.offenders.missed();
    let at_least = if missed > 0 { "at least " } else { "" };
    for (index, offender) in policy.offenders.top(TOP).into_iter().enumerate() {
        let label = if index == 0 { "keys hit most" } else { "" };
        let of = policy.keys.get(offender.hash).map(|record| format!(" of {}", grouped(record.requests)));
        let (rejected, of) = (grouped(offender.rejected), of.unwrap_or_default());
        line(text, format_args!("  {label:<15}{}: {at_least}{rejected}{of} rejected", offender.text));
    }
}

fn print_suggestion(text: &mut String, policy: &PolicyCounts, per_100_000: u64) {
    let percent = percent(per_100_000);
    let words = &policy.words;
    line(text, format_args!("  to never reject {percent} % of the clients:"));
    match policy.suggest(per_100_000) {
        None if policy.requests() == 0 => line(text, format_args!("    no request")),
        None => line(text, format_args!("    not known: this limit is not one over a fixed time")),
        Some(suggestion) => {
            for suggested in suggestion.in_words(words) {
                line(text, format_args!("    {suggested}"));
            }
        }
    }
}

fn percent(per_100_000: u64) -> String {
    let (whole, rest) = (per_100_000 / 1_000, per_100_000 % 1_000);
    let decimals = format!("{rest:03}");
    match decimals.trim_end_matches('0') {
        "" => whole.to_string(),
        decimals => format!("{whole}.{decimals}"),
    }
}

fn line(text: &mut String, content: std::fmt::Arguments<'_>) {
    // Writing to a string cannot fail.
    let _ = writeln!(text, "{content}");
}
