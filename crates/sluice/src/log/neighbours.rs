//! Corrects times that cannot be true, from the lines around them.

use super::block::Block;

/// A file's times: how far they have come, and which lines are out of order.
#[derive(Debug)]
pub(super) struct Neighbours {
    /// In nanoseconds.
    window: u64,
    /// The latest time so far. `None` before the first line.
    reached: Option<u64>,
    /// A block with times that the next block confirms or not.
    doubted: Option<Block>,
}

/// Lines that were out of order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Disorder {
    /// Put in order.
    pub(crate) sorted: Misplaced,
    /// Older than the lines before them by more than the window. They count at the latest time before them.
    pub(crate) late: Misplaced,
    /// Newer than the lines behind them by more than the window. They count at times between their neighbours' times.
    pub(crate) ahead: Misplaced,
}

/// The number of lines, and by how much they were misplaced at most.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Misplaced {
    pub(crate) lines: u64,
    pub(crate) furthest: u64,
}

impl Misplaced {
    pub(crate) fn note(&mut self, nanos: u64) {
        self.lines += 1;
        self.furthest = self.furthest.max(nanos);
    }

    pub(crate) fn add(&mut self, other: Self) {
        self.lines += other.lines;
        self.furthest = self.furthest.max(other.furthest);
    }
}

impl Neighbours {
    pub(super) const fn new(window: u64) -> Self {
        Self { window, reached: None, doubted: None }
    }

    /// Returns the latest time in settled lines.
    pub(super) const fn reached(&self) -> Option<u64> {
        self.reached
    }

    /// Takes the file's next block. Only the last one may be partly filled or empty. Calls `settle` for each block
    /// whose times are settled.
    pub(super) fn take(&mut self, block: Block, disorder: &mut Disorder, mut settle: impl FnMut(Block)) {
        let is_last = !block.is_full();
        if let Some(doubted) = self.doubted.take() {
            settle(self.settled(doubted, &block, disorder));
        }
        if is_last {
            let nothing = Block::default();
            settle(self.settled(block, &nothing, disorder));
        } else if self.is_doubtful(&block) {
            self.doubted = Some(block);
        } else {
            settle(self.settled(block, &Block::default(), disorder));
        }
    }

    /// Whether a line is newer than all before it by more than the window. Either the server had nothing to log in
    /// between, or the time is wrong.
    fn is_doubtful(&self, block: &Block) -> bool {
        let Some(mut reached) = self.reached else { return true };
        block.times_from(0).any(|nanos| {
            let is_ahead = nanos > reached.saturating_add(self.window);
            reached = reached.max(nanos);
            is_ahead
        })
    }

    /// Settles a block's times. `next` is the block behind it.
    fn settled(&mut self, mut block: Block, next: &Block, disorder: &mut Disorder) -> Block {
        let mut followers = Followers::new(&block, next);
        // Lines that are ahead, until the next line that is not.
        let mut ahead = Vec::new();
        for index in 0..block.len() {
            let nanos = block.nanos(index);
            let is_new = self.reached.is_none_or(|reached| nanos > reached.saturating_add(self.window));
            if is_new {
                let usual = followers.usual(&block, next, index);
                if let Some(usual) = usual.filter(|usual| nanos > usual.saturating_add(self.window)) {
                    disorder.ahead.note(nanos - self.reached.unwrap_or(usual));
                    ahead.push(index);
                    continue;
                }
            }
            let before = self.reached;
            let reached = *self.reached.get_or_insert(nanos);
            if nanos < reached.saturating_sub(self.window) {
                disorder.late.note(reached - nanos);
                block.set_nanos(index, reached);
            } else if nanos < reached {
                disorder.sorted.note(reached - nanos);
            }
            self.reached = Some(reached.max(nanos));
            spread(&mut block, &ahead, before.unwrap_or(nanos), nanos);
            ahead.clear();
        }
        let reached = self.reached.unwrap_or(0);
        spread(&mut block, &ahead, reached, reached);
        block
    }
}

/// Gives lines that are ahead evenly spread times between their neighbours' times.
fn spread(block: &mut Block, ahead: &[usize], from: u64, until: u64) {
    let parts = ahead.len() as u64 + 1;
    for (part, index) in (1..parts).zip(ahead) {
        block.set_nanos(*index, from + until.saturating_sub(from) / parts * part);
    }
}

/// The usual time in the lines behind a line.
struct Followers {
    /// The later of two whole blocks' medians.
    of_blocks: Option<u64>,
    is_last: bool,
}

impl Followers {
    fn new(block: &Block, next: &Block) -> Self {
        Self { of_blocks: None, is_last: !block.is_full() || !next.is_full() }
    }

    /// Returns `None` if no line follows.
    fn usual(&mut self, block: &Block, next: &Block, index: usize) -> Option<u64> {
        if self.is_last {
            return median(block.times_from(index + 1).chain(next.times_from(0)));
        }
        if self.of_blocks.is_none() {
            self.of_blocks = median(block.times_from(0)).max(median(next.times_from(0)));
        }
        self.of_blocks
    }
}

fn median(times: impl Iterator<Item = u64>) -> Option<u64> {
    let mut times: Vec<u64> = times.collect();
    let middle = times.len() / 2;
    (!times.is_empty()).then(|| *times.select_nth_unstable(middle).1)
}
