//! The queue's scripts, as the server runs them, and how to read their replies. They make a [`Timeline`]'s steps, whose
//! end is a bucket's state.

#[cfg(test)]
#[allow(clippy::cast_possible_truncation, reason = "small numbers, short tests")]
mod tests;

use smallvec::{SmallVec, smallvec};
use tower_sluice::internal::remote::StateParts as _;
use tower_sluice::store::remote::{Arrival, DepartureTerms, Timeline};
use tower_sluice::time::Timestamp;

use crate::script::{BadReply, Grid, Key, MicrosSpan, NO_MARK, Script, ScriptCall, ScriptReply, UnfitQuota, whole};

/// A queue is a bucket with holes: its scripts are made from a bucket's blocks, and from some of its own.
macro_rules! queue_script {
    ($new:ident, $block:literal) => {
        Script::$new(concat!(
            include_str!("../../script/lua/open.lua"),
            include_str!("../../script/lua/each_key.lua"),
            include_str!("lua/open.lua"),
            include_str!("../../script/lua/bucket_read.lua"),
            include_str!(concat!("lua/", $block, ".lua")),
            include_str!("lua/close.lua"),
            include_str!("../../script/lua/close.lua"),
        ))
    };
}

static QUEUE: Script = queue_script!(bundled, "take");

static QUEUE_REFUND: Script = queue_script!(new, "refund");

type Holes = SmallVec<[[u128; 2]; 2]>;

/// The two steps on a timeline, in whole microseconds and parts of one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QueueScript {
    grid: Grid,
    terms: DepartureTerms,
}

impl QueueScript {
    pub(crate) fn new(terms: DepartureTerms) -> Self {
        Self { grid: Grid::new(terms.quota()), terms }
    }

    /// Checks whether the server can keep timelines of this length.
    pub(crate) fn check_fit(&self) -> Result<(), UnfitQuota> {
        self.grid.check_fit(self.terms.most_ahead())
    }

    /// Returns the script's numbers, and how much more than their capacity other requests may owe, in microseconds.
    fn numbers(&self, Arrival { length, reach }: Arrival) -> ([u64; 5], u64) {
        let [numbers, most] = [reach, self.terms.most_ahead()].map(|ticks| self.grid.span(ticks).micros);
        // Rounded up, since both sides were rounded down.
        let beyond = most.saturating_sub(numbers) + 1;
        (self.grid.numbers(self.grid.span(length), self.grid.span(reach), NO_MARK), beyond)
    }

    /// Returns the call that makes a reservation. It is made once: if its answer gets lost, the reservation stays.
    pub(crate) fn call(&self, key: Key, arrival: Arrival) -> ScriptCall {
        let (numbers, beyond) = self.numbers(arrival);
        let mut args = smallvec![u64::from(arrival.length > 0)];
        args.extend_from_slice(&numbers);
        args.push(beyond);
        ScriptCall { script: &QUEUE, keys: smallvec![key], args, texts: Vec::new() }
    }

    /// Reads the answer to a [`call`](Self::call) for the same arrival: when the reservation ends, and the timeline
    /// with it.
    pub(crate) fn reserved(
        &self,
        answer: &ScriptReply,
        arrival: Arrival,
    ) -> Result<(Option<u128>, Timeline), BadReply> {
        let mut timeline = match answer.old(0)? {
            Some(old) => self.read(old, answer.now).ok_or(BadReply::State)?,
            None => Timeline::as_of(answer.now, &self.terms, 0, 0, []),
        };
        let end = timeline.reserve(self.terms.ticks(answer.now), arrival);
        if answer.admitted != u32::from(end.is_some()) {
            return Err(BadReply::Disagreement);
        }
        Ok((end, timeline))
    }

    /// Reads a stored timeline.
    fn read(&self, stored: &[u8], now: Timestamp) -> Option<Timeline> {
        let mut parts = stored.split(|byte| *byte == b' ').filter(|part| !part.is_empty());
        let end = self.grid.read(parts.next()?, u128::MAX)?.parts();
        let most_ahead = self.grid.units(MicrosSpan { micros: whole(parts.next_back()?)?, rest: 0 });
        let holes: Option<Holes> = parts.map(|hole| self.read_hole(hole)).collect();
        Some(Timeline::as_of(now, &self.terms, end, most_ahead, holes?))
    }

    /// Reads `<first>+<rest>:<last>+<rest>`.
    fn read_hole(&self, stored: &[u8]) -> Option<[u128; 2]> {
        let mut ends = stored.splitn(2, |byte| *byte == b':').map(|end| {
            let plus = end.iter().position(|byte| *byte == b'+')?;
            let micros = whole(&end[..plus])?;
            let rest = whole(&end[plus + 1..])?;
            // Limited as for the timeline's end, because another quota may have had finer parts.
            Some(self.grid.units(MicrosSpan { micros, rest: rest.min(self.grid.parts() - 1) }))
        });
        Some([ends.next()??, ends.next()??])
    }

    /// Returns the call that returns a reservation, to the next arrival for which it is wide enough.
    pub(crate) fn give_back(&self, key: Key, length: u128, end: u128) -> ScriptCall {
        let (numbers, beyond) = self.numbers(Arrival { length, reach: self.terms.most_ahead() });
        let mut args = smallvec![1];
        args.extend_from_slice(&numbers);
        args.push(beyond);
        let MicrosSpan { micros, rest } = self.grid.span(end);
        args.extend([micros, rest]);
        ScriptCall { script: &QUEUE_REFUND, keys: smallvec![key], args, texts: Vec::new() }
    }
}
