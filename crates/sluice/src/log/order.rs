//! Sorts requests by time.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use super::block::Block;
use super::{Entry, Place};

/// Requests that were read, and that may be newer than requests that are read next.
///
/// In a log that is in order, each request goes to the end of a queue. The others are in a heap.
#[derive(Debug, Default)]
pub(super) struct Order {
    queue: VecDeque<Key>,
    others: BinaryHeap<Reverse<Key>>,
    blocks: Vec<Used>,
    /// Blocks without a request.
    spare: Vec<usize>,
    bytes: usize,
}

/// Requests with the same time are in the order of their files and lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    nanos: u64,
    place: Place,
    block: usize,
    index: usize,
}

#[derive(Debug, Default)]
struct Used {
    block: Block,
    waiting: usize,
    bytes: usize,
}

/// A request whose turn has come.
#[derive(Clone, Copy, Debug)]
pub(super) struct Turn(Key);

impl Turn {
    pub(super) const fn nanos(self) -> u64 {
        self.0.nanos
    }

    pub(super) const fn place(self) -> Place {
        self.0.place
    }
}

impl Order {
    /// Takes a block's requests, and returns an empty block.
    pub(super) fn add(&mut self, block: Block, file: usize) -> Block {
        let number = self.spare.pop().unwrap_or_else(|| {
            self.blocks.push(Used::default());
            self.blocks.len() - 1
        });
        for index in 0..block.len() {
            let place = Place { file, line: block.line(index) };
            let key = Key { nanos: block.nanos(index), place, block: number, index };
            match self.queue.back() {
                Some(last) if key < *last => self.others.push(Reverse(key)),
                _ => self.queue.push_back(key),
            }
        }
        let bytes = block.bytes() + block.len() * size_of::<Key>();
        self.bytes += bytes;
        let used = &mut self.blocks[number];
        (used.waiting, used.bytes) = (block.len(), bytes);
        let spare = std::mem::replace(&mut used.block, block);
        if used.waiting == 0 {
            self.give_back(number);
        }
        spare
    }

    /// Returns the memory that waiting requests occupy.
    pub(super) const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Removes the earliest request, if it is before `nanos`. Its [entry](Self::entry) is there until the next block is
    /// added, if [`release`](Self::release) is called.
    pub(super) fn next_before(&mut self, nanos: u64) -> Option<Turn> {
        let other = self.others.peek().map(|Reverse(key)| *key);
        match (self.queue.front().copied(), other) {
            (Some(first), other) if first.nanos < nanos && other.is_none_or(|other| first < other) => {
                self.queue.pop_front();
                Some(Turn(first))
            }
            (_, Some(other)) if other.nanos < nanos => {
                self.others.pop();
                Some(Turn(other))
            }
            _ => None,
        }
    }

    pub(super) fn entry(&self, turn: Turn) -> Entry<'_> {
        self.blocks[turn.0.block].block.entry(turn.0.index)
    }

    /// Frees a request's memory, and its block's if that was the last request.
    pub(super) fn release(&mut self, turn: Turn) {
        let used = &mut self.blocks[turn.0.block];
        used.waiting -= 1;
        if used.waiting == 0 {
            self.give_back(turn.0.block);
        }
    }

    fn give_back(&mut self, number: usize) {
        let used = &mut self.blocks[number];
        used.block.clear();
        self.bytes -= used.bytes;
        self.spare.push(number);
    }
}
