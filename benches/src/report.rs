//! The results, in tables.

use std::collections::{BTreeSet, HashMap};
use std::fmt;

use crate::Figures;
use crate::cell::{Cell, HOT, MILLION, Of, Work, short};
use crate::layer::{self, Row};
use crate::pages::{QUICK, versions};
use crate::ratio::{Ratio, times};
use crate::scale::median;
use crate::{app, count, steady, targets};

pub struct Report {
    title: &'static str,
    machine: String,
    quick: bool,
    pub stopped_early: bool,
    /// References that varied too much, so the cells compared to them were measured again.
    again: BTreeSet<String>,
    /// By repetition.
    figures: HashMap<Cell, Vec<(usize, Figures)>>,
}

impl Report {
    pub fn new(title: &'static str, machine: String, quick: bool) -> Self {
        Self { title, machine, quick, stopped_early: false, again: BTreeSet::new(), figures: HashMap::new() }
    }

    pub fn add(&mut self, cell: Cell, repetition: usize, figures: Figures) {
        self.figures.entry(cell).or_default().push((repetition, figures));
    }

    fn all(&self, cell: Cell, name: &str) -> Vec<f64> {
        let repetitions = self.figures.get(&cell).map_or(&[][..], Vec::as_slice);
        repetitions.iter().filter_map(|(_, figures)| figures.get(name)).collect()
    }

    pub fn median(&self, cell: Cell, name: &str) -> Option<f64> {
        let all = self.all(cell, name);
        (!all.is_empty()).then(|| median(all))
    }

    /// The reference's figure divided by the cell's, each pair from one repetition.
    pub fn ratio(&self, cell: Cell, name: &str) -> Option<Ratio> {
        let references = self.figures.get(&cell.reference()?)?;
        let ratios = self.figures.get(&cell)?.iter().filter_map(|(repetition, figures)| {
            let (_, reference) = references.iter().find(|(other, _)| other == repetition)?;
            Some(reference.get(name)? / figures.get(name)?)
        });
        let variation = steady::variation(&self.all(cell.reference()?, name));
        Some(Ratio::of(ratios.collect())?.with_variation(variation))
    }

    /// A cell's figure by another one from the same repetition.
    pub fn within(&self, cell: Cell, name: &str, by: &str) -> Option<Ratio> {
        let repetitions = self.figures.get(&cell)?.iter();
        let ratio =
            Ratio::of(repetitions.filter_map(|(_, figures)| Some(figures.get(name)? / figures.get(by)?)).collect());
        Some(ratio?.with_variation(steady::variation(&self.all(cell, by))))
    }

    /// By how much a cell's reference took longer in one repetition than in another.
    pub fn variation(&self, cell: Cell) -> f64 {
        let variation = |reference: Cell| {
            let times = reference.steady().into_iter().map(|name| self.all(reference, &name));
            times.map(|times| steady::variation(&times)).fold(0.0, f64::max)
        };
        cell.reference().map_or(0.0, variation)
    }

    /// Keeps the repetitions in which a reference took least, for all `cells` that are compared to it. Their number
    /// stays as if none had been measured again.
    pub fn keep_quietest(&mut self, reference: Cell, cells: &[Cell]) {
        self.again.insert(reference.to_string());
        let (names, repetitions) = (reference.steady(), self.figures.get(&reference).map_or(&[][..], Vec::as_slice));
        let time = |figures: &Figures| names.iter().filter_map(|name| figures.get(name)).sum::<f64>();
        let times = repetitions.iter().map(|(repetition, figures)| (*repetition, time(figures))).collect();
        let kept = steady::quietest(times, reference.repetitions());
        for cell in cells {
            if let Some(repetitions) = self.figures.get_mut(cell) {
                repetitions.retain(|(repetition, _)| kept.contains(repetition));
            }
        }
    }

    /// The greatest variation among all cells on one thread.
    fn most_variation(&self) -> f64 {
        let quiet = Work::all().into_iter().filter(|work| work.threads == 1 && !work.zipf);
        quiet.map(|work| self.variation(Cell::Decide(Of::Governor, work))).fold(0.0, f64::max)
    }
}

pub fn ns(value: Option<f64>) -> String {
    match value {
        None => "–".into(),
        Some(ns) if ns >= 1e6 => format!("{:.2} ms", ns / 1e6),
        Some(ns) if ns >= 1e4 => format!("{:.1} µs", ns / 1e3),
        Some(ns) if ns >= 100.0 => format!("{ns:.0}"),
        Some(ns) => format!("{ns:.1}"),
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "# {}\n\n{}.", self.title, self.machine)?;
        writeln!(f, "{}.", versions(LOCK, &PEERS))?;
        if self.quick {
            writeln!(f, "\n{QUICK} small tables, few decisions, one repetition. Not to be quoted.**")?;
        } else if self.figures.keys().any(|cell| matches!(cell, Cell::Decide(Of::Governor, _))) {
            writeln!(f, "The reference varied by up to {:.0} % between repetitions.", 100.0 * self.most_variation())?;
        }
        if !self.again.is_empty() {
            let names: Vec<_> = self.again.iter().map(String::as_str).collect();
            writeln!(
                f,
                "Measured again, as it varied by more than {:.0} %, and the repetitions in which it took least are kept: {}.",
                100.0 * steady::MOST,
                names.join(", ")
            )?;
        }
        if self.stopped_early {
            writeln!(f, "**The time was up before all repetitions were done.**")?;
        }
        let decisions = self
            .figures
            .iter()
            .filter(|(cell, _)| matches!(cell, Cell::Decide(..) | Cell::Tail(_) | Cell::Layer | Cell::App));
        if decisions.flat_map(|(_, all)| all).any(|(_, figures)| figures.get("pinned") == Some(0.0)) {
            writeln!(f, "Threads were not tied to processors: there is no `taskset`, or too few processors.")?;
        }
        if !crate::raw::PRECISE {
            writeln!(f, "No serialising fence is known here: isolated figures are too low.")?;
        }
        let has = |kind: fn(&Cell) -> bool| self.figures.keys().any(kind);
        if has(|cell| matches!(cell, Cell::Decide(..))) {
            self.decisions(f)?;
            self.peers(f)?;
            self.memory(f)?;
        }
        if has(|cell| matches!(cell, Cell::Tail(_))) {
            self.tails(f)?;
        }
        #[cfg(feature = "servers")]
        if has(|cell| matches!(cell, Cell::InFlight(..))) {
            self.in_flight(f)?;
        }
        if has(|cell| *cell == Cell::Layer) {
            self.layers(f)?;
        }
        if has(|cell| *cell == Cell::Instructions) {
            self.instructions(f)?;
        }
        if has(|cell| *cell == Cell::App) {
            self.app(f)?;
        }
        if has(|cell| matches!(cell, Cell::Change(..))) {
            self.changes(f)?;
        }
        if has(|cell| matches!(cell, Cell::Exact(..) | Cell::Lost | Cell::FirstTouch)) {
            self.proofs(f)?;
        }
        if self.quick { Ok(()) } else { targets::write(self, f) }
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
        writeln!(f, "\n## Others, ns in a loop, and isolated (ratio of governor keyed to each)\n")?;
        writeln!(f, "| keys | population | threads | | limiter | ns | ratio | isolated | ratio |")?;
        writeln!(f, "|---|---|---|---|---|---|---|---|---|")?;
        for work in Work::all() {
            for of in work.done_by().into_iter().filter(|of| !matches!(of, Of::Nothing | Of::Governor | Of::Ours)) {
                let cell = Cell::Decide(of, work);
                if !self.figures.contains_key(&cell) {
                    continue;
                }
                let (population, regime) = describe(work);
                write!(f, "| {} | {population} | {} | {regime} | {} ", work.key.name(), work.threads, of.name())?;
                for name in ["loop", "isolated"] {
                    write!(f, "| {} | {} ", ns(self.median(cell, name)), times(self.ratio(cell, name)))?;
                }
                writeln!(f, "|")?;
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

    #[cfg(feature = "servers")]
    fn in_flight(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "\n## A unit in flight is taken and released, by IP\n")?;
        writeln!(f, "| keys | limiter | ns | ratio | bytes per live key |\n|---|---|---|---|---|")?;
        for cell in Cell::IN_FLIGHT {
            let Cell::InFlight(by, keys) = cell else { continue };
            if self.figures.contains_key(&cell) {
                let bytes = self.median(cell, "bytes").filter(|_| keys > HOT);
                let bytes = bytes.map_or_else(String::new, |bytes| format!("{bytes:.1}"));
                let (taken, ratio) = (ns(self.median(cell, "loop")), times(self.ratio(cell, "loop")));
                writeln!(f, "| {} | {} | {taken} | {ratio} | {bytes} |", short(keys), by.name())?;
            }
        }
        Ok(())
    }

    fn changes(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "\n## The longest decision without a live change, and with one, µs (medians of the repetitions)\n"
        )?;
        writeln!(
            f,
            "| limiter, keys | without | not descheduled | with | not descheduled | the change, ms |\n|---|---|---|---|---|---|"
        )?;
        for cell in Cell::CHANGES {
            let Cell::Change(of, keys) = cell else { continue };
            if self.figures.contains_key(&cell) {
                write!(f, "| {}, {} ", of.name(), short(keys))?;
                for name in ["calm: max", "calm: max on the processor", "change: max", "change: max on the processor"] {
                    write!(f, "| {:.0} ", self.median(cell, name).unwrap_or(f64::NAN) / 1e3)?;
                }
                writeln!(f, "| {:.0} |", self.median(cell, "a change, ms").unwrap_or(f64::NAN))?;
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
        for row in layer::ROWS.map(Row::name) {
            let get = |what| self.median(Cell::Layer, &format!("{row}: {what}"));
            if let (Some(added), Some(allocations)) = (get("ns"), get("allocations")) {
                let all = self.all(Cell::Layer, &format!("{row}: ns")).into_iter().map(|added| ns(Some(added)));
                let all = all.collect::<Vec<_>>().join(", ");
                writeln!(f, "| {row} | {} ({all}) | {allocations:.1} | {} |", ns(Some(added)), ns(get("bare")))?;
            }
        }
        Ok(())
    }

    fn instructions(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "\n## Instructions per request, in process, by callgrind\n")?;
        writeln!(f, "Ours on a clock that stands still, the peers on theirs.\n")?;
        writeln!(f, "| layer | beside the bare service |\n|---|---|")?;
        for row in count::ROWS {
            let count = self.median(Cell::Instructions, &count::name(row));
            let count = count.map_or("–".to_owned(), |count| format!("{count:.0}"));
            if row == Row::Bare {
                writeln!(f, "| *the bare service itself* | *{count}* |")?;
            } else {
                writeln!(f, "| {} | {count} |", row.name())?;
            }
        }
        Ok(())
    }

    fn app(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "\n## An axum app under load, one worker (ratios to the app without a layer)\n")?;
        writeln!(
            f,
            "| layer | requests per second | ratio | processor, ns per request | ratio | busy | client busy |\n|---|---|---|---|---|---|---|"
        )?;
        for row in app::ROWS {
            let [rate, time, busy, client] =
                ["per second", "processor ns", "busy", "client busy"].map(|what| format!("{row}: {what}"));
            let get = |name| self.median(Cell::App, name).unwrap_or(f64::NAN);
            let ratio = |what, name: &str| times(self.within(Cell::App, name, &format!("{}: {what}", app::BARE)));
            writeln!(
                f,
                "| {row} | {:.0} | {} | {:.0} | {} | {:.0} % | {:.0} % |",
                get(&rate),
                ratio("per second", &rate),
                get(&time),
                ratio("processor ns", &time),
                100.0 * get(&busy),
                100.0 * get(&client),
            )?;
        }
        Ok(())
    }

    fn proofs(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "\n## Right before fast\n")?;
        let exact = self.figures.keys().filter(|cell| matches!(cell, Cell::Exact(..))).count();
        if exact > 0 {
            writeln!(
                f,
                "- {exact} pairs of limiter and key type admitted exactly the burst to a hot key from two threads."
            )?;
        }
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
}

fn describe(work: Work) -> (String, &'static str) {
    let population = match (work.keys, work.zipf) {
        (HOT, _) => "hot".to_owned(),
        (keys, false) => format!("{} uniform", short(keys)),
        (keys, true) => format!("{} Zipf", short(keys)),
    };
    (population, if work.rejected { "rejected" } else { "admitted" })
}

/// The built versions.
pub const LOCK: &str = include_str!("../Cargo.lock");

const PEERS: [&str; 7] =
    ["governor", "axum_gcra", "ratelimit", "leaky-bucket", "quick_cache", "moka", "tower_governor"];
