//! What came out, in tables.

use std::collections::HashMap;
use std::fmt;

use crate::Figures;
use crate::cell::{Cell, HOT, KeyType, MILLION, Of, Work, short};
use crate::layer;
use crate::measure::median;

pub struct Report {
    machine: String,
    quick: bool,
    pub stopped_early: bool,
    /// By repetition.
    figures: HashMap<Cell, Vec<(usize, Figures)>>,
}

/// The median of all repetitions, and the extremes.
#[derive(Clone, Copy)]
struct Ratio {
    median: f64,
    least: f64,
    most: f64,
}

impl Report {
    pub fn new(machine: String, quick: bool) -> Self {
        Self { machine, quick, stopped_early: false, figures: HashMap::new() }
    }

    pub fn add(&mut self, cell: Cell, repetition: usize, figures: Figures) {
        self.figures.entry(cell).or_default().push((repetition, figures));
    }

    fn all(&self, cell: Cell, name: &str) -> Vec<f64> {
        let repetitions = self.figures.get(&cell).map_or(&[][..], Vec::as_slice);
        repetitions.iter().filter_map(|(_, figures)| figures.get(name)).collect()
    }

    fn median(&self, cell: Cell, name: &str) -> Option<f64> {
        let all = self.all(cell, name);
        (!all.is_empty()).then(|| median(all))
    }

    /// How many times what the cell needs its reference does, each in the same repetition.
    fn ratio(&self, cell: Cell, name: &str) -> Option<Ratio> {
        let references = self.figures.get(&cell.reference()?)?;
        let ratios = self.figures.get(&cell)?.iter().filter_map(|(repetition, figures)| {
            let (_, reference) = references.iter().find(|(other, _)| other == repetition)?;
            Some(reference.get(name)? / figures.get(name)?)
        });
        let ratios: Vec<_> = ratios.collect();
        let (least, most) =
            ratios.iter().fold((f64::MAX, 0.0), |(least, most), ratio| (ratio.min(least), ratio.max(most)));
        (!ratios.is_empty()).then(|| Ratio { median: median(ratios), least, most })
    }

    /// By how much the reference took longer in one repetition than in another, at most, on one thread.
    fn unrest(&self) -> f64 {
        let quiet = Work::all().into_iter().filter(|work| work.threads == 1 && !work.zipf);
        let spread = |work| {
            let all = self.all(Cell::Decide(Of::Governor, work), "loop");
            let (least, most) = all.iter().fold((f64::MAX, 0.0_f64), |(least, most), ns| (ns.min(least), ns.max(most)));
            if all.is_empty() { 0.0 } else { most / least - 1.0 }
        };
        quiet.map(spread).fold(0.0, f64::max)
    }
}

fn ns(value: Option<f64>) -> String {
    match value {
        None => "–".into(),
        Some(ns) if ns >= 1e6 => format!("{:.2} ms", ns / 1e6),
        Some(ns) if ns >= 1e4 => format!("{:.1} µs", ns / 1e3),
        Some(ns) if ns >= 100.0 => format!("{ns:.0}"),
        Some(ns) => format!("{ns:.1}"),
    }
}

fn times(ratio: Option<Ratio>) -> String {
    ratio.map_or("–".into(), |Ratio { median, least, most }| format!("**{median:.2}×** ({least:.2}–{most:.2})"))
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "# Results\n\n{}.", self.machine)?;
        writeln!(f, "{}.", versions(&PEERS))?;
        if self.quick {
            writeln!(f, "\n**A quick run: small tables, few decisions, one repetition. Not to be quoted.**")?;
        } else {
            writeln!(f, "The reference varied by up to {:.0} % between repetitions.", 100.0 * self.unrest())?;
        }
        if self.stopped_early {
            writeln!(f, "**The time was up before all repetitions were done.**")?;
        }
        let decisions =
            self.figures.iter().filter(|(cell, _)| matches!(cell, Cell::Decide(..) | Cell::Tail(_) | Cell::Layer));
        if decisions.flat_map(|(_, all)| all).any(|(_, figures)| figures.get("pinned") == Some(0.0)) {
            writeln!(f, "Threads were not tied to processors: there is no `taskset`, or too few processors.")?;
        }
        if !crate::raw::PRECISE {
            writeln!(f, "No serialising fence is known here: isolated figures are too low.")?;
        }
        self.decisions(f)?;
        self.peers(f)?;
        self.memory(f)?;
        self.tails(f)?;
        self.layers(f)?;
        self.proofs(f)?;
        if self.quick { Ok(()) } else { self.targets(f) }
    }
}

impl Report {
    fn decisions(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "\n## Decisions: ours against governor keyed, ns (ratio: median, least–most)\n")?;
        writeln!(
            f,
            "| keys | population | threads | | empty loop | governor | ours | ratio | isolated: empty | governor | ours | ratio |"
        )?;
        writeln!(f, "|---|---|---|---|---|---|---|---|---|---|---|---|")?;
        for work in Work::all() {
            let cell = |of| Cell::Decide(of, work);
            if !self.figures.contains_key(&cell(Of::Ours)) {
                continue;
            }
            let (population, regime) = describe(work);
            write!(f, "| {} | {population} | {} | {regime} ", work.key.name(), work.threads)?;
            for name in ["loop", "isolated"] {
                let of = |of| ns(self.median(cell(of), name));
                let ratio = times(self.ratio(cell(Of::Ours), name));
                write!(f, "| {} | {} | {} | {ratio} ", of(Of::Nothing), of(Of::Governor), of(Of::Ours))?;
            }
            writeln!(f, "|")?;
        }
        Ok(())
    }

    fn peers(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "\n## Others, ns in a loop (ratio of governor keyed to each)\n")?;
        writeln!(f, "| keys | population | threads | | limiter | ns | ratio |\n|---|---|---|---|---|---|---|")?;
        for work in Work::all() {
            for of in work.done_by().into_iter().filter(|of| !matches!(of, Of::Nothing | Of::Governor | Of::Ours)) {
                let cell = Cell::Decide(of, work);
                if let Some(loop_ns) = self.median(cell, "loop") {
                    let (population, regime) = describe(work);
                    let (key, threads, ratio) = (work.key.name(), work.threads, times(self.ratio(cell, "loop")));
                    writeln!(
                        f,
                        "| {key} | {population} | {threads} | {regime} | {} | {} | {ratio} |",
                        of.name(),
                        ns(Some(loop_ns))
                    )?;
                }
            }
        }
        Ok(())
    }

    fn memory(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "\n## Memory: growth of what is resident, bytes per live key (ours at half load)\n")?;
        writeln!(f, "| keys | population | limiter | bytes per key |\n|---|---|---|---|")?;
        for work in Work::all().into_iter().filter(|work| work.keys >= MILLION && work.threads == 1 && !work.zipf) {
            for of in
                work.done_by().into_iter().filter(|of| !matches!(of, Of::Nothing | Of::OursDyn | Of::OursSystemClock))
            {
                if let Some(bytes) = self.median(Cell::Decide(of, work), "bytes") {
                    writeln!(f, "| {} | {} | {} | {bytes:.1} |", work.key.name(), short(work.keys), of.name())?;
                }
            }
        }
        Ok(())
    }

    fn tails(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "\n## Single decisions while 4M fresh keys arrive, ns (medians of the repetitions; max: all)\n")?;
        writeln!(f, "| limiter | p50 | p99 | p99.9 | p99.99 | max |\n|---|---|---|---|---|---|")?;
        for cell in Cell::TAILS {
            let Cell::Tail(of) = cell else { continue };
            if self.figures.contains_key(&cell) {
                write!(f, "| {} ", of.name())?;
                for name in ["p50", "p99", "p99.9", "p99.99"] {
                    write!(f, "| {} ", ns(self.median(cell, name)))?;
                }
                let all: Vec<_> = self.all(cell, "max").into_iter().map(|max| ns(Some(max))).collect();
                writeln!(f, "| {} |", all.join(", "))?;
            }
        }
        Ok(())
    }

    fn layers(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "\n## A layer over the bare service, in process\n")?;
        writeln!(
            f,
            "| layer | added ns (all repetitions) | added allocations | bare service, ns |\n|---|---|---|---|"
        )?;
        for row in layer::ROWS {
            let get = |what| self.median(Cell::Layer, &format!("{row}: {what}"));
            if let (Some(added), Some(allocations)) = (get("ns"), get("allocations")) {
                let all = self.all(Cell::Layer, &format!("{row}: ns")).into_iter().map(|added| ns(Some(added)));
                let all = all.collect::<Vec<_>>().join(", ");
                writeln!(f, "| {row} | {} ({all}) | {allocations:.1} | {} |", ns(Some(added)), ns(get("bare")))?;
            }
        }
        Ok(())
    }

    fn proofs(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "\n## Right before fast\n")?;
        let exact = self.figures.keys().filter(|cell| matches!(cell, Cell::Exact(..))).count();
        writeln!(
            f,
            "- {exact} pairs of limiter and key type admitted exactly the burst to a hot key from two threads."
        )?;
        if let Some([(_, figures)]) = self.figures.get(&Cell::Lost).map(Vec::as_slice) {
            let get = |name| figures.get(name).unwrap_or(f64::NAN);
            let (keys, lost, forgotten) = (get("keys"), get("lost"), get("forgotten"));
            writeln!(f, "- Half-full tables lost {lost} of {keys} live keys (and say {forgotten}).")?;
        }
        if let Some([(_, figures)]) = self.figures.get(&Cell::FirstTouch).map(Vec::as_slice) {
            let get = |name| figures.get(name).unwrap_or(f64::NAN);
            let (keys, twice, never) = (get("keys"), get("twice"), get("never"));
            writeln!(
                f,
                "- Of {keys} keys first touched by two threads at once, {twice} were admitted twice, and {never} \
                 shared a budget with another."
            )?;
        }
        Ok(())
    }

    /// What the project set out to reach.
    fn targets(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "\n## Targets\n\n| what | target | here | |\n|---|---|---|---|")?;
        let ours = |work| Cell::Decide(Of::Ours, work);
        let (hot, million) = (Work::uniform(KeyType::Ip, HOT), Work::uniform(KeyType::Ip, MILLION));
        let (text, many) = (Work::uniform(KeyType::Text, MILLION), Work::uniform(KeyType::Ip, 10 * MILLION));
        for (what, work, name, target) in [
            ("one hot key", hot, "loop", 2.0),
            ("1M uniform, IP, loop", million, "loop", 2.9),
            ("1M uniform, string, loop", text, "loop", 4.0),
            ("1M, IP, isolated", million, "isolated", 2.2),
            ("1M, string, isolated", text, "isolated", 3.5),
            ("10M, IP, isolated", many, "isolated", 1.9),
            ("10M, string, loop", Work { keys: 10 * MILLION, ..text }, "loop", 3.0),
            ("1M Zipf, IP", million.zipf(), "loop", 2.4),
            ("1M Zipf, string", text.zipf(), "loop", 2.4),
            ("2 threads, hot, admitted", hot.threads(2), "loop", 2.4),
            ("2 threads, hot, rejected", hot.threads(2).rejected(), "loop", 4.5),
            ("2 threads, 1M uniform", million.threads(2), "loop", 3.0),
        ] {
            if let Some(ratio) = self.ratio(ours(work), name) {
                // As it is printed, to two digits.
                let reached = ratio.median >= target - 0.005;
                target_row(f, what, &format!("≥ {target:.1}×"), &times(Some(ratio)), reached)?;
            }
        }
        const ADMITTED: usize = 0;
        const FIELDS: usize = 1;
        const REJECTED: usize = 6;
        let layer = |row, what| self.median(Cell::Layer, &format!("{}: {what}", layer::ROWS[row]));
        // The worst of each repetition; of these the median, as the machine itself may hold up any one.
        let worst = self.median(Cell::Tail(Of::Ours), "max");
        for (what, target, here, digits) in [
            ("bytes per live key, 1M, IP", 17.0, self.median(ours(million), "bytes"), 1),
            ("bytes per live key, 1M, string", 17.0, self.median(ours(text), "bytes"), 1),
            ("worst decision while 4M keys arrive, ms", 1.0, worst.map(|ns| ns / 1e6), 2),
            ("live keys lost at half load", 0.0, self.median(Cell::Lost, "lost"), 0),
            ("admitted twice on first touch", 0.0, self.median(Cell::FirstTouch, "twice"), 0),
            ("layer, admitted, no fields, ns", 60.0, layer(ADMITTED, "ns"), 0),
            ("layer, admitted, no fields, allocations", 0.0, layer(ADMITTED, "allocations"), 0),
            ("layer, admitted, all fields, ns", 150.0, layer(FIELDS, "ns"), 0),
            ("layer, rejected with body and all fields, ns", 250.0, layer(REJECTED, "ns"), 0),
        ] {
            if let Some(here) = here {
                target_row(f, what, &format!("≤ {target}"), &format!("{here:.digits$}"), here <= target)?;
            }
        }
        Ok(())
    }
}

fn target_row(f: &mut fmt::Formatter<'_>, what: &str, target: &str, here: &str, reached: bool) -> fmt::Result {
    writeln!(f, "| {what} | {target} | {here} | {} |", if reached { "reached" } else { "**not reached**" })
}

fn describe(work: Work) -> (String, &'static str) {
    let population = match (work.keys, work.zipf) {
        (HOT, _) => "hot".to_owned(),
        (keys, false) => format!("{} uniform", short(keys)),
        (keys, true) => format!("{} Zipf", short(keys)),
    };
    (population, if work.rejected { "rejected" } else { "admitted" })
}

const PEERS: [&str; 7] =
    ["governor", "axum_gcra", "ratelimit", "leaky-bucket", "quick_cache", "moka", "tower_governor"];

/// What was built, as `Cargo.lock` has it.
pub fn versions(names: &[&str]) -> String {
    let lock = include_str!("../Cargo.lock");
    let version = |name: &str| {
        let entry = format!("name = \"{name}\"\nversion = \"");
        let versions: Vec<_> = lock.split(&entry).skip(1).filter_map(|rest| Some(rest.split_once('"')?.0)).collect();
        (!versions.is_empty()).then(|| format!("{name} {}", versions.join(" and ")))
    };
    names.iter().copied().filter_map(version).collect::<Vec<_>>().join(", ")
}
