//! [`FairQueue`]: the requests that wait, in strict classes, and within a class with a fair share for each key.
//!
//! Within a class, this is start-time fair queueing (Goyal, Vin, Cheng, *Start-Time Fair Queueing*, SIGCOMM 1996): each
//! key's next request has a start tag in virtual time, the lowest tag is served first, and then the key's tag grows by
//! the request's cost, divided by the key's weight. The virtual time is the tag that was served last, so a key that
//! returns starts there: it gains nothing from the time in which it had no request.
//!
//! A request that leaves unserved gives its part of the virtual time back.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::num::NonZeroU32;

use crate::values::{PartitionKey, Priority};

/// A request in the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Ticket {
    /// Grows with each arrival, so that the lowest in a class is the oldest.
    number: u64,
    pub(super) priority: Priority,
}

/// A request that asks for a place.
#[derive(Clone, Debug)]
pub(super) struct Arrival {
    pub(super) key: PartitionKey,
    pub(super) priority: Priority,
    pub(super) weight: NonZeroU32,
    /// Not zero.
    pub(super) cost: u64,
    /// The instant, in nanoseconds.
    pub(super) at: u64,
}

/// A request that has left the queue, served or not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Departure {
    pub(super) ticket: Ticket,
    pub(super) cost: u64,
    pub(super) arrived: u64,
    /// Whether its key had more than its share of the class when it left.
    pub(super) is_over_share: bool,
}

/// The order among one key's requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    /// First come, first served.
    OldestFirst,
    /// While the server is overloaded: the newest request is the one whose client has waited least, and will most
    /// likely still be there.
    NewestFirst,
}

#[derive(Debug, Default)]
pub(super) struct FairQueue {
    classes: [Class; Priority::ALL.len()],
    next: u64,
}

#[derive(Debug)]
struct Waiter {
    flow: FlowId,
    cost: u64,
    arrived: u64,
    /// Its part of the virtual time.
    span: VirtualTime,
}

/// Units, times [`SCALE`], divided by a weight.
type VirtualTime = u128;

/// So that a heavy key's parts do not round to zero.
const SCALE: VirtualTime = 1 << 32;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct FlowId(u64);

/// The keys of one class.
#[derive(Debug, Default)]
struct Class {
    waiters: BTreeMap<Ticket, Waiter>,
    /// The start tag that was served last.
    virtual_time: VirtualTime,
    ids: HashMap<PartitionKey, FlowId>,
    flows: HashMap<FlowId, Flow>,
    /// Keys with requests, by the tag of the next one.
    by_start: BTreeSet<(VirtualTime, FlowId)>,
    /// Keys with requests, by the tag after their last one.
    by_finish: BTreeSet<(VirtualTime, FlowId)>,
    /// Keys without requests whose tag is ahead of the virtual time. They are forgotten when it has caught up.
    ahead: BTreeSet<(VirtualTime, FlowId)>,
    /// The sum of all requests' parts.
    backlog: VirtualTime,
    /// All requests' units.
    units: u64,
    next: u64,
}

#[derive(Debug)]
struct Flow {
    key: PartitionKey,
    start: VirtualTime,
    finish: VirtualTime,
    waiters: BTreeSet<Ticket>,
}

impl FairQueue {
    /// The number of requests.
    pub(super) fn len(&self) -> usize {
        self.classes.iter().map(|class| class.waiters.len()).sum()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.classes.iter().all(|class| class.waiters.is_empty())
    }

    /// The number of requests in each class, the lowest first.
    pub(super) fn lens(&self) -> [u64; Priority::ALL.len()] {
        Priority::ALL.map(|class| self.class(class).waiters.len() as u64)
    }

    /// The number of requests in this class and the classes above.
    pub(super) fn len_from(&self, priority: Priority) -> u64 {
        let classes = Priority::ALL.into_iter().filter(|class| *class >= priority);
        classes.map(|class| self.class(class).waiters.len() as u64).sum()
    }

    /// When the oldest request in a class came.
    pub(super) fn oldest(&self, priority: Priority) -> Option<u64> {
        self.class(priority).waiters.first_key_value().map(|(_, waiter)| waiter.arrived)
    }

    /// The units of all requests in this class and the classes above.
    pub(super) fn units_from(&self, priority: Priority) -> u64 {
        Priority::ALL.iter().filter(|class| **class >= priority).map(|class| self.class(*class).units).sum()
    }

    /// Appends a request.
    pub(super) fn push(&mut self, arrival: Arrival) -> Ticket {
        let ticket = Ticket { number: self.next, priority: arrival.priority };
        self.next += 1;
        self.class_mut(arrival.priority).push(ticket, arrival);
        ticket
    }

    /// The highest class with requests: the next one is served from it.
    pub(super) fn highest(&self) -> Option<Priority> {
        Priority::ALL.into_iter().rev().find(|class| !self.class(*class).waiters.is_empty())
    }

    /// The lowest class with requests: the last one is pushed out of it.
    pub(super) fn lowest(&self) -> Option<Priority> {
        Priority::ALL.into_iter().find(|class| !self.class(*class).waiters.is_empty())
    }

    /// The request that the class serves next, and its cost.
    pub(super) fn next(&self, priority: Priority, order: Order) -> Option<(Ticket, u64)> {
        self.next_of(priority, order, |_, _| true).map(|(ticket, cost, _)| (ticket, cost))
    }

    /// The request that the class serves next, among the keys that may be served with this cost.
    pub(super) fn next_of(
        &self,
        priority: Priority,
        order: Order,
        may_be: impl Fn(&PartitionKey, u64) -> bool,
    ) -> Option<(Ticket, u64, &PartitionKey)> {
        let class = self.class(priority);
        class.by_start.iter().find_map(|(_, id)| {
            let flow = &class.flows[id];
            let ticket = flow.end(order)?;
            let cost = class.waiters[&ticket].cost;
            may_be(&flow.key, cost).then_some((ticket, cost, &flow.key))
        })
    }

    /// Serves a request, which is the [next](Self::next) one of its class.
    pub(super) fn serve(&mut self, ticket: Ticket) -> Option<Departure> {
        self.class_mut(ticket.priority).take(ticket, true)
    }

    /// Removes a request that is not served, if it is still there.
    pub(super) fn remove(&mut self, ticket: Ticket) -> Option<Departure> {
        self.class_mut(ticket.priority).take(ticket, false)
    }

    /// Removes the request that the class would serve last.
    pub(super) fn pop_last(&mut self, priority: Priority, order: Order) -> Option<Departure> {
        let class = self.class(priority);
        let (_, flow) = class.by_finish.last()?;
        let last = class.flows[flow].end(match order {
            Order::OldestFirst => Order::NewestFirst,
            Order::NewestFirst => Order::OldestFirst,
        })?;
        self.remove(last)
    }

    /// Removes the oldest request of a class, if it came before `at`.
    pub(super) fn pop_before(&mut self, priority: Priority, at: u64) -> Option<Departure> {
        let (ticket, waiter) = self.class(priority).waiters.first_key_value()?;
        let ticket = *ticket;
        if waiter.arrived < at { self.remove(ticket) } else { None }
    }

    /// Removes all requests, and returns their tickets.
    pub(super) fn drain(&mut self) -> Vec<Ticket> {
        std::mem::take(&mut self.classes).into_iter().flat_map(|class| class.waiters.into_keys()).collect()
    }

    fn class(&self, priority: Priority) -> &Class {
        &self.classes[priority as usize]
    }

    fn class_mut(&mut self, priority: Priority) -> &mut Class {
        &mut self.classes[priority as usize]
    }

    /// Whether nothing is kept about any key.
    #[cfg(all(test, not(sluice_loom)))]
    pub(super) fn is_blank(&self) -> bool {
        self.classes.iter().all(|class| class.ids.is_empty() && class.flows.is_empty() && class.ahead.is_empty())
    }

    /// Panics if two parts of the state contradict each other.
    #[cfg(test)]
    pub(super) fn check(&self) {
        for class in &self.classes {
            assert_eq!(class.units, class.waiters.values().map(|waiter| waiter.cost).sum::<u64>());
            assert_eq!(class.backlog, class.waiters.values().map(|waiter| waiter.span).sum::<VirtualTime>());
            assert_eq!(class.ids.len(), class.flows.len());
            assert!(class.backlog > 0 || class.flows.is_empty() && class.virtual_time == 0);
            for (id, flow) in &class.flows {
                assert_eq!(class.ids.get(&flow.key), Some(id));
                let spans = flow.waiters.iter().map(|ticket| class.waiters[ticket].span).sum::<VirtualTime>();
                assert_eq!(flow.finish - flow.start, spans);
                let is_busy = !flow.waiters.is_empty();
                assert_eq!(class.by_start.contains(&(flow.start, *id)), is_busy);
                assert_eq!(class.by_finish.contains(&(flow.finish, *id)), is_busy);
                assert_eq!(class.ahead.contains(&(flow.start, *id)), !is_busy);
                assert!(is_busy || flow.start > class.virtual_time);
            }
            assert_eq!(class.by_start.len(), class.by_finish.len());
            assert_eq!(class.by_start.len() + class.ahead.len(), class.flows.len());
        }
    }
}

impl Class {
    fn push(&mut self, ticket: Ticket, arrival: Arrival) {
        let Arrival { key, weight, cost, at, .. } = arrival;
        let span = VirtualTime::from(cost) * SCALE / VirtualTime::from(weight.get());
        let id = *self.ids.entry(key.clone()).or_insert_with(|| {
            self.next += 1;
            FlowId(self.next)
        });
        let now = self.virtual_time;
        let flow =
            self.flows.entry(id).or_insert_with(|| Flow { key, start: now, finish: now, waiters: BTreeSet::new() });
        // A key without requests is in this set only, and one with requests in the other two.
        self.ahead.remove(&(flow.start, id));
        self.by_finish.remove(&(flow.finish, id));
        flow.finish += span;
        flow.waiters.insert(ticket);
        self.by_start.insert((flow.start, id));
        self.by_finish.insert((flow.finish, id));
        self.backlog += span;
        self.units += cost;
        self.waiters.insert(ticket, Waiter { flow: id, cost, arrived: at, span });
    }

    /// Removes a request, if it is still there.
    fn take(&mut self, ticket: Ticket, is_served: bool) -> Option<Departure> {
        let Waiter { flow: id, cost, span, arrived, .. } = self.waiters.remove(&ticket)?;
        let keys = self.by_start.len() as VirtualTime;
        let flow = self.flows.get_mut(&id)?;
        let is_over_share = (flow.finish - flow.start) * keys > self.backlog;
        self.by_start.remove(&(flow.start, id));
        self.by_finish.remove(&(flow.finish, id));
        flow.waiters.remove(&ticket);
        if is_served {
            // A key that was passed over is behind: the virtual time does not go back to it.
            self.virtual_time = self.virtual_time.max(flow.start);
            flow.start += span;
        } else {
            flow.finish -= span;
        }
        if flow.waiters.is_empty() {
            self.ahead.insert((flow.start, id));
        } else {
            self.by_start.insert((flow.start, id));
            self.by_finish.insert((flow.finish, id));
        }
        self.backlog -= span;
        self.units -= cost;
        self.forget();
        Some(Departure { ticket, cost, arrived, is_over_share })
    }

    /// Forgets the keys that have no requests and no lead. Without any request, nobody has a lead.
    fn forget(&mut self) {
        if self.by_start.is_empty() {
            *self = Self::default();
            return;
        }
        while let Some(id) = self.ahead.first().filter(|(start, _)| *start <= self.virtual_time).map(|(_, id)| *id) {
            self.ahead.pop_first();
            if let Some(flow) = self.flows.remove(&id) {
                self.ids.remove(&flow.key);
            }
        }
    }
}

impl Flow {
    /// The key's request that is served next.
    fn end(&self, order: Order) -> Option<Ticket> {
        match order {
            Order::OldestFirst => self.waiters.first().copied(),
            Order::NewestFirst => self.waiters.last().copied(),
        }
    }
}

#[cfg(all(test, not(sluice_loom)))]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::util::cases::cases;

    /// A naive queue: each key's next tag, and a list of waiters.
    #[derive(Default)]
    struct Model {
        waiting: Vec<(Ticket, Arrival)>,
        /// By class and key: the tag of its next request.
        tags: HashMap<(Priority, PartitionKey), u128>,
        now: HashMap<Priority, u128>,
    }

    impl Model {
        fn tag(&self, arrival: &Arrival) -> u128 {
            let now = self.now.get(&arrival.priority).copied().unwrap_or(0);
            let tag = self.tags.get(&(arrival.priority, arrival.key.clone())).copied().unwrap_or(0);
            let others = self.waiting.iter().any(|(_, it)| (it.priority, &it.key) == (arrival.priority, &arrival.key));
            if others { tag } else { tag.max(now) }
        }

        fn push(&mut self, ticket: Ticket, arrival: Arrival) {
            let tag = self.tag(&arrival);
            self.tags.insert((arrival.priority, arrival.key.clone()), tag);
            self.waiting.push((ticket, arrival));
        }

        fn remove(&mut self, ticket: Ticket) -> Option<Arrival> {
            let index = self.waiting.iter().position(|(it, _)| *it == ticket)?;
            let (_, arrival) = self.waiting.remove(index);
            if !self.waiting.iter().any(|(_, it)| it.priority == arrival.priority) {
                self.tags.retain(|(priority, _), _| *priority != arrival.priority);
                self.now.remove(&arrival.priority);
            }
            Some(arrival)
        }

        /// Serves the request that was chosen, if it is one of those that may be next.
        fn serve(&mut self, ticket: Ticket, order: Order) {
            let chosen = self.waiting.iter().find(|(it, _)| *it == ticket).expect("it waits").1.clone();
            let class = self.waiting.iter().map(|(_, it)| it.priority).max().unwrap();
            assert_eq!(chosen.priority, class, "a higher class waits");
            let of_class = || self.waiting.iter().filter(|(_, it)| it.priority == class);
            let least = of_class().map(|(_, it)| self.tag(it)).min().unwrap();
            assert_eq!(self.tag(&chosen), least, "another key's turn is earlier");
            let mut of_key = of_class().filter(|(_, it)| it.key == chosen.key).map(|(ticket, _)| *ticket);
            let end = if order == Order::OldestFirst { of_key.next() } else { of_key.next_back() };
            assert_eq!(end, Some(ticket), "the order of the key");
            self.now.insert(class, least);
            let next = least + u128::from(chosen.cost) * SCALE / u128::from(chosen.weight.get());
            self.tags.insert((class, chosen.key), next);
            self.remove(ticket);
        }
    }

    fn arrival(key: u8, class: usize, weight: u32, cost: u64, at: u64) -> Arrival {
        let weight = NonZeroU32::new(weight).unwrap();
        Arrival { key: u64::from(key).into(), priority: Priority::ALL[class], weight, cost, at }
    }

    proptest! {
        #![proptest_config(cases(256))]

        /// With requests that leave, are shed for their age or pushed out at any point.
        #[test]
        fn it_serves_what_the_model_would(
            steps in prop::collection::vec((0..10_u8, 0..5_u8, 0..4_usize, 1..4_u64, any::<bool>()), 1..200)
        ) {
            let (mut queue, mut model) = (FairQueue::default(), Model::default());
            for (at, (step, key, class, cost, newest)) in (0..).zip(steps) {
                let order = if newest { Order::NewestFirst } else { Order::OldestFirst };
                match step {
                    0..=4 => {
                        let arrival = arrival(key, class, u32::from(key) + 1, cost, at);
                        model.push(queue.push(arrival.clone()), arrival);
                    }
                    5..=6 => {
                        let next = queue.highest().and_then(|class| queue.next(class, order));
                        let Some((ticket, cost)) = next else {
                            prop_assert!(model.waiting.is_empty());
                            continue;
                        };
                        prop_assert_eq!(queue.serve(ticket).map(|served| (served.ticket, served.cost)), next);
                        prop_assert!(cost > 0);
                        model.serve(ticket, order);
                    }
                    7 => {
                        let lowest = model.waiting.iter().map(|(_, it)| it.priority).min();
                        prop_assert_eq!(queue.lowest(), lowest);
                        if let Some(last) = lowest.and_then(|class| queue.pop_last(class, order)) {
                            prop_assert!(model.remove(last.ticket).is_some());
                        }
                    }
                    8 => {
                        let before = at.saturating_sub(10);
                        let class = Priority::ALL[class];
                        let mut of_class = model.waiting.iter().filter(|(_, it)| it.priority == class);
                        let oldest = of_class.next().map(|(ticket, it)| (*ticket, it.at));
                        prop_assert_eq!(queue.oldest(class), oldest.map(|(_, at)| at));
                        let old = queue.pop_before(class, before).map(|old| old.ticket);
                        prop_assert_eq!(old, oldest.filter(|(_, at)| *at < before).map(|(ticket, _)| ticket));
                        old.map(|old| model.remove(old));
                    }
                    _ => {
                        let any = model.waiting.get(usize::from(key)).map(|(ticket, _)| *ticket);
                        if let Some(any) = any {
                            let (left, expected) = (queue.remove(any).unwrap(), model.remove(any).unwrap());
                            prop_assert_eq!((left.cost, left.ticket), (expected.cost, any));
                            prop_assert_eq!(queue.remove(any), None);
                        }
                    }
                }
                queue.check();
                prop_assert_eq!(queue.len(), model.waiting.len());
            }
        }
    }

    fn served(queue: &mut FairQueue, count: usize) -> Vec<u64> {
        let mut served = vec![0; 3];
        let keys: Vec<PartitionKey> = (0..3_u64).map(PartitionKey::from).collect();
        for _ in 0..count {
            let (ticket, cost) = queue.next(queue.highest().unwrap(), Order::OldestFirst).unwrap();
            let class = queue.class(ticket.priority);
            let key = &class.flows[&class.waiters[&ticket].flow].key;
            served[keys.iter().position(|it| it == key).unwrap()] += cost;
            queue.serve(ticket);
        }
        served
    }

    #[test]
    fn busy_keys_get_no_greater_share() {
        let mut queue = FairQueue::default();
        for key in [0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 2, 2] {
            queue.push(arrival(key, 1, 1, 1, 0));
        }
        assert_eq!(served(&mut queue, 6), [2, 2, 2]);
        assert_eq!(served(&mut queue, 6), [6, 0, 0], "the capacity that the others leave is its own");
    }

    #[test]
    fn shares_follow_weights_in_units() {
        let mut queue = FairQueue::default();
        for _ in 0..40 {
            queue.push(arrival(0, 1, 3, 1, 0));
            queue.push(arrival(1, 1, 1, 1, 0));
            queue.push(arrival(2, 1, 1, 2, 0));
        }
        let shares = served(&mut queue, 45);
        assert!(shares[0] >= 29 && shares[1].abs_diff(10) <= 1 && shares[2].abs_diff(10) <= 2, "{shares:?}");
    }

    #[test]
    fn absence_gains_a_key_nothing() {
        let mut queue = FairQueue::default();
        for _ in 0..20 {
            queue.push(arrival(0, 1, 1, 1, 0));
        }
        assert_eq!(served(&mut queue, 10), [10, 0, 0]);
        for _ in 0..10 {
            queue.push(arrival(1, 1, 1, 1, 0));
        }
        let shares = served(&mut queue, 10);
        assert!(shares[0].abs_diff(5) <= 1, "{shares:?}");
    }

    #[test]
    fn a_brief_absence_keeps_the_tag() {
        let mut queue = FairQueue::default();
        for key in [0, 1, 1, 1, 1] {
            queue.push(arrival(key, 1, 1, 4, 0));
        }
        assert_eq!(served(&mut queue, 1), [4, 0, 0]);
        // Its only request was served, and it comes back: the other key is served first.
        queue.push(arrival(0, 1, 1, 4, 0));
        assert_eq!(served(&mut queue, 1), [0, 4, 0]);
    }

    #[test]
    fn heavy_keys_are_pushed_out() {
        let mut queue = FairQueue::default();
        let tickets = [0, 0, 0, 0, 1].map(|key| queue.push(arrival(key, 1, 1, 1, 0)));
        let pushed = queue.pop_last(Priority::Normal, Order::OldestFirst).unwrap();
        assert_eq!((pushed.ticket, pushed.is_over_share), (tickets[3], true), "the last of the heavy key");
        let pushed = queue.pop_last(Priority::Normal, Order::NewestFirst).unwrap();
        assert_eq!(pushed.ticket, tickets[0], "while the newest is served first");
        assert_eq!(queue.units_from(Priority::Normal), 3);
    }
}
