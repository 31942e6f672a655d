//! The plan that a seed determines: the servers, the callers, and the faults with their times.

use std::time::Duration;

use tokio::time::Instant;

use super::network::{FOREVER, Network};
use super::server::LOADING;
use crate::script::random::Xorshift;

#[derive(Debug)]
pub(super) struct Plan {
    pub(super) processes: usize,
    /// The cluster's nodes; 0 is a single server.
    pub(super) shards: usize,
    pub(super) timeout: Duration,
    pub(super) connect_timeout: Duration,
    /// The delay in one direction, in milliseconds: the least, and the most that is added.
    pub(super) delay: (u64, u64),
    /// The weights of the kinds of requests, see `callers::KINDS`.
    pub(super) weights: [u64; 7],
    /// The milliseconds between two batches of requests, and the greatest size of a batch.
    pub(super) gap: u64,
    pub(super) batch: u64,
    /// One in `give_up.0` callers gives up after at most `give_up.1` milliseconds. 0: all callers wait.
    pub(super) give_up: (u64, u64),
    /// The faults and their times in milliseconds, in order.
    pub(super) faults: Vec<(u64, PlannedFault)>,
    /// The time in milliseconds by which all faults are over.
    pub(super) length: u64,
}

/// A fault that strikes the shard's primary at that time. Times are in milliseconds, and steps of a clock in
/// microseconds.
#[derive(Clone, Copy, Debug)]
pub(super) enum PlannedFault {
    /// The network drops packets, which arrive late; between the server and one process, or all.
    Stall {
        shard: usize,
        process: Option<usize>,
        up: bool,
        down: bool,
        ms: u64,
    },
    Reset {
        shard: usize,
    },
    /// The server forgets its connections, and no process notices.
    HalfOpen {
        shard: usize,
    },
    /// Commands are carried out, but connections end instead of answering.
    Swallow {
        shard: usize,
        ms: u64,
    },
    /// Connections are reset and refused.
    Refuse {
        shard: usize,
        ms: u64,
    },
    /// The server ends, and starts again: without scripts, and, if `is_empty`, without data.
    Restart {
        shard: usize,
        ms: u64,
        is_empty: bool,
    },
    FlushScripts {
        shard: usize,
    },
    /// The server does nothing for a while, and then carries out all commands that have come.
    Pause {
        shard: usize,
        ms: u64,
    },
    /// The standby copies the data, and takes over later.
    Copy {
        shard: usize,
    },
    /// The standby becomes the primary, and the old primary a replica. If the old primary crashed, it starts again
    /// after `crashed` milliseconds.
    FailOver {
        shard: usize,
        crashed: u64,
    },
    /// The clock is stepped, and runs at another rate, in parts per million.
    Clock {
        shard: usize,
        step: i64,
        rate: u64,
    },
}

impl Plan {
    pub(super) fn from_seed(seed: u64) -> Self {
        let mut random = Xorshift::from_seed(seed);
        let mut draw = |from: u64, to: u64| from + random.below(to - from + 1);
        let processes = draw(1, 2) as usize;
        let shards = [0, 0, 2, 3][draw(0, 3) as usize];
        let timeout = [20, 50, 50, 100][draw(0, 3) as usize];
        let least = draw(0, timeout / 12);
        let delay = (least, draw(0, timeout / 12 - least));
        // Half of the runs have requests of one kind only, and another quarter has at most two kinds.
        let mut weights = [0; 7];
        for _ in 0..[1, 1, 2, 12][draw(0, 3) as usize] {
            weights[[0, 1, 2, 3, 4, 4, 5, 6][draw(0, 7) as usize]] += 1;
        }
        let give_up = [(0, 0), (0, 0), (4, timeout * 2), (1, draw(timeout / 3, timeout))][draw(0, 3) as usize];
        let gap = draw(1, 4);
        let batch = [1, 2, 12][draw(0, 2) as usize];
        let mut faults = Vec::new();
        let mut at = draw(100, 300);
        let mut length = 500;
        for _ in 0..draw(1, 4) {
            let shard = draw(0, shards.max(1) as u64 - 1) as usize;
            let ms = [draw(1, timeout), draw(timeout, 3 * timeout), draw(3 * timeout, 900)][draw(0, 2) as usize];
            let process = (draw(0, 1) == 0).then(|| draw(0, processes as u64 - 1) as usize);
            let fault = match draw(0, 10) {
                0 | 1 => {
                    let (up, down) = [(true, true), (true, false), (false, true)][draw(0, 2) as usize];
                    PlannedFault::Stall { shard, process, up, down, ms }
                }
                2 => PlannedFault::Reset { shard },
                3 => PlannedFault::HalfOpen { shard },
                4 => PlannedFault::Swallow { shard, ms: ms.min(300) },
                5 => PlannedFault::Refuse { shard, ms },
                6 => PlannedFault::Restart { shard, ms, is_empty: draw(0, 1) == 0 },
                7 => PlannedFault::FlushScripts { shard },
                8 => PlannedFault::Pause { shard, ms },
                9 => {
                    faults.push((at, PlannedFault::Copy { shard }));
                    // The replication lag.
                    at += draw(0, 100);
                    PlannedFault::FailOver { shard, crashed: if draw(0, 1) == 0 { ms } else { 0 } }
                }
                _ => {
                    let step = draw(0, 4_000) as i64 * 1_000 - 2_000_000;
                    PlannedFault::Clock {
                        shard,
                        step,
                        rate: [500_000, 1_000_000, 1_000_500, 2_000_000][draw(0, 3) as usize],
                    }
                }
            };
            faults.push((at, fault));
            length = length.max(at + ms + 50);
            at += draw(0, ms + 200);
        }
        let timeout = Duration::from_millis(timeout);
        let connect_timeout = Duration::from_millis(draw(100, 1_000));
        Self { processes, shards, timeout, connect_timeout, delay, weights, gap, batch, give_up, faults, length }
    }
}

impl PlannedFault {
    /// Makes the fault happen now. Returns the server that it happens to.
    pub(super) fn strike(self, network: &Network, processes: usize) -> usize {
        let now = Instant::now();
        let after = |ms: u64| now + Duration::from_millis(ms);
        let mut guard = network.lock();
        let state = &mut *guard;
        state.note(format_args!("{self:?}"));
        let (Self::Stall { shard, .. }
        | Self::Reset { shard }
        | Self::HalfOpen { shard }
        | Self::Swallow { shard, .. }
        | Self::Refuse { shard, .. }
        | Self::Restart { shard, .. }
        | Self::FlushScripts { shard }
        | Self::Pause { shard, .. }
        | Self::Copy { shard }
        | Self::FailOver { shard, .. }
        | Self::Clock { shard, .. }) = self;
        let server = state.shards[shard].primary;
        for process in 0..processes {
            let link = state.link(process, server);
            let dead_until = match self {
                Self::Stall { process: Some(other), .. } if other != process => continue,
                Self::Stall { up, down, ms, .. } => {
                    let [there, back] = &mut link.stalled;
                    for stalled in [there].into_iter().filter(|_| up).chain([back].into_iter().filter(|_| down)) {
                        *stalled = (*stalled).max(after(ms));
                    }
                    after(ms)
                }
                Self::Swallow { ms, .. } => {
                    link.swallows = after(ms);
                    after(ms)
                }
                Self::Refuse { ms, .. } => {
                    link.refuses = after(ms);
                    after(ms)
                }
                Self::HalfOpen { .. } => now + FOREVER,
                Self::Restart { ms, .. } => after(ms),
                Self::Pause { ms, .. } => after(ms),
                _ => now,
            };
            if link.dead.is_none_or(|(_, until)| until <= now) {
                link.dead = (now < dead_until).then_some((now, dead_until));
            }
            match self {
                Self::Reset { .. } | Self::Refuse { .. } | Self::Restart { .. } => {
                    state.end_connections(process, server, false);
                }
                Self::FailOver { crashed, .. } if crashed > 0 => state.end_connections(process, server, false),
                Self::HalfOpen { .. } => state.end_connections(process, server, true),
                _ => {}
            }
        }
        match self {
            Self::Restart { is_empty, .. } => {
                state.servers[server].is_up = false;
                state.servers[server].forget_scripts();
                if is_empty {
                    state.servers[server].forget_all();
                }
            }
            Self::FlushScripts { .. } => state.servers[server].forget_scripts(),
            Self::Pause { ms, .. } => state.servers[server].paused_until = after(ms),
            Self::Copy { .. } => state.shards[shard].copy = state.servers[server].data.clone(),
            Self::FailOver { crashed, .. } => {
                let shard = &mut state.shards[shard];
                std::mem::swap(&mut shard.primary, &mut shard.standby);
                let primary = shard.primary;
                let mut copy = std::mem::take(&mut shard.copy);
                // For the debts in the copy, the clock changes from the old primary's to the new one's.
                copy.accounts.set_clock(state.servers[server].micros(), state.servers[primary].micros());
                state.servers[primary].data = copy;
                state.servers[primary].is_replica = false;
                state.servers[server].is_replica = true;
                state.servers[server].is_up &= crashed == 0;
                state.begin_as_primary(primary);
            }
            Self::Clock { step, rate, .. } => state.servers[server].set_clock(step, rate),
            _ => {}
        }
        server
    }

    /// Returns after how many milliseconds a server that ended starts again.
    pub(super) fn starts_again(self) -> Option<u64> {
        match self {
            Self::Restart { ms, .. } => Some(ms),
            Self::FailOver { crashed, .. } if crashed > 0 => Some(crashed),
            _ => None,
        }
    }
}

/// Starts a server again.
pub(super) fn start(network: &Network, server: usize) {
    let mut state = network.lock();
    state.servers[server].is_up = true;
    state.servers[server].loading_until = Instant::now() + LOADING;
    state.note(format_args!("server {server} starts again"));
}
