//! `Formula`: which of the members that decide on a request must have room.

/// A tree with [`All`](Self::All) and [`Any`](Self::Any) nodes. Its leaves are members, by their numbers, and each
/// member is one leaf.
///
/// A request is charged to every part of an `All`, and to the first part with room in an `Any`. It is rejected if an
/// `All` lacks room in one part, or an `Any` in each.
///
/// # Waits
///
/// A member that has room at one instant has room at each later one, if nothing is charged meanwhile. So it has room
/// exactly from its wait on. An `All` has room from its parts' longest wait on, and an `Any` from the shortest on. By
/// induction, `combine` finds the wait for a tree. `verify/proofs/` has both steps.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(clippy::exhaustive_enums, reason = "each is matched")]
pub enum Formula {
    /// A leaf.
    Member(usize),
    /// Each part must have room.
    All(Vec<Self>),
    /// One part must have room, and the first one with room is charged.
    Any(Vec<Self>),
}

/// The answer from a member, or from a part of a formula, about its room for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(clippy::exhaustive_enums, reason = "each is matched")]
pub enum Room {
    /// It has room, or may have.
    Enough,
    /// It does not have room.
    Lacking,
    /// It has no say: an `All` does not need it, and an `Any` cannot choose it.
    NoSay,
}

impl Formula {
    /// Appends the members to charge to `chosen`, in tree order. Appends nothing unless there is room.
    pub fn choose(&self, room: &impl Fn(usize) -> Room, chosen: &mut Vec<usize>) -> Room {
        match self {
            Self::Member(member) => {
                let room = room(*member);
                if room == Room::Enough {
                    chosen.push(*member);
                }
                room
            }
            Self::All(parts) => {
                let before = chosen.len();
                let mut all = Room::NoSay;
                for part in parts {
                    match part.choose(room, chosen) {
                        Room::Enough => all = Room::Enough,
                        Room::Lacking => {
                            chosen.truncate(before);
                            return Room::Lacking;
                        }
                        Room::NoSay => {}
                    }
                }
                all
            }
            Self::Any(parts) => {
                let mut any = Room::NoSay;
                for part in parts {
                    match part.choose(room, chosen) {
                        Room::Enough => return Room::Enough,
                        Room::Lacking => any = Room::Lacking,
                        Room::NoSay => {}
                    }
                }
                any
            }
        }
    }

    /// Whether there is room.
    pub(crate) fn room(&self, room: &impl Fn(usize) -> Room) -> Room {
        self.choose(room, &mut Vec::new())
    }

    /// Appends the members to blame for a rejection to `lacking`. A member without room isn't to blame if a choice
    /// beside it has room.
    pub(crate) fn lacking(&self, room: &impl Fn(usize) -> Room, lacking: &mut Vec<usize>) -> Room {
        let before = lacking.len();
        let (parts, decisive) = match self {
            Self::Member(member) => {
                let room = room(*member);
                lacking.extend((room == Room::Lacking).then_some(*member));
                return room;
            }
            Self::All(parts) => (parts, Room::Lacking),
            Self::Any(parts) => (parts, Room::Enough),
        };
        let mut whole = Room::NoSay;
        for part in parts {
            let room = part.lacking(room, lacking);
            if room != Room::NoSay && whole != decisive {
                whole = room;
            }
        }
        if whole != Room::Lacking {
            lacking.truncate(before);
        }
        whole
    }

    /// Combines the members' measures, such as waits: the longest of an `All`, the shortest of an `Any`. A member
    /// without a say has the measure `None`, and does not count. Ties: first member.
    pub(crate) fn combine<M: Ord>(&self, measure: &impl Fn(usize) -> Option<M>) -> Option<M> {
        match self {
            Self::Member(member) => measure(*member),
            // Reversed, because `max` keeps the last of several maxima.
            Self::All(parts) => parts.iter().rev().filter_map(|part| part.combine(measure)).max(),
            Self::Any(parts) => parts.iter().filter_map(|part| part.combine(measure)).min(),
        }
    }

    /// Whether it has an `Any` with several parts.
    pub(crate) fn has_choices(&self) -> bool {
        match self {
            Self::Member(_) => false,
            Self::All(parts) => parts.iter().any(Self::has_choices),
            Self::Any(parts) => parts.len() > 1 || parts.iter().any(Self::has_choices),
        }
    }

    pub(crate) fn has(&self, member: usize) -> bool {
        match self {
            Self::Member(other) => *other == member,
            Self::All(parts) | Self::Any(parts) => parts.iter().any(|part| part.has(member)),
        }
    }

    /// The formula with other numbers for its members.
    pub(crate) fn renumbered(&self, number: &impl Fn(usize) -> usize) -> Self {
        let all = |parts: &[Self]| parts.iter().map(|part| part.renumbered(number)).collect();
        match self {
            Self::Member(member) => Self::Member(number(*member)),
            Self::All(parts) => Self::All(all(parts)),
            Self::Any(parts) => Self::Any(all(parts)),
        }
    }

    /// Returns the part that is left to decide if some members are known already. In an `Any`, it ends before the first
    /// choice that is unknown, or known to have room, because that choice precedes all choices behind it.
    ///
    /// Each member that is left must have a say, so if a member has no say, that must be known. Otherwise, an `Any`
    /// would forget that the choices beside it have no room.
    pub(crate) fn rest(&self, known: &impl Fn(usize) -> Rest) -> Rest {
        let mut left = Vec::new();
        match self {
            Self::Member(member) => known(*member),
            Self::All(parts) => {
                let mut all = Room::NoSay;
                let mut is_unknown = false;
                let mut ends_early = false;
                for part in parts {
                    match part.rest(known) {
                        Rest::Known(Room::Lacking) => return Rest::Known(Room::Lacking),
                        Rest::Known(Room::Enough) => all = Room::Enough,
                        Rest::Known(Room::NoSay) => {}
                        Rest::Unknown => is_unknown = true,
                        Rest::Formula { formula, ends_early: ends } => {
                            left.push(formula);
                            ends_early |= ends;
                        }
                    }
                }
                match left.is_empty() {
                    _ if is_unknown => Rest::Unknown,
                    true => Rest::Known(all),
                    false => Rest::Formula { formula: Self::All(left), ends_early },
                }
            }
            Self::Any(parts) => {
                let mut any = Room::NoSay;
                let mut ends_early = false;
                for part in parts {
                    match part.rest(known) {
                        Rest::Known(Room::NoSay) => {}
                        Rest::Known(Room::Lacking) => any = Room::Lacking,
                        Rest::Formula { formula, ends_early: ends } => {
                            left.push(formula);
                            ends_early = ends;
                        }
                        decisive if left.is_empty() => return decisive,
                        _ => ends_early = true,
                    }
                    if ends_early {
                        break;
                    }
                }
                if left.is_empty() { Rest::Known(any) } else { Rest::Formula { formula: Self::Any(left), ends_early } }
            }
        }
    }
}

/// The [rest](Formula::rest) of a formula.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Rest {
    Known(Room),
    /// It cannot be decided now.
    Unknown,
    Formula {
        formula: Formula,
        /// Whether further choices are left out, because one before them is unknown, or has room.
        ends_early: bool,
    },
}

impl Rest {
    /// The rest if only this member must be decided.
    pub(crate) const fn member(member: usize) -> Self {
        Self::Formula { formula: Formula::Member(member), ends_early: false }
    }
}

#[cfg(all(test, not(sluice_loom)))]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::util::cases::cases;
    use crate::values::counterexamples::each;

    const MEMBERS: u32 = 6;

    /// Numbers the leaves of a random tree.
    fn number(formula: &mut Formula, next: &mut usize) {
        match formula {
            Formula::Member(member) => {
                *member = *next;
                *next += 1;
            }
            Formula::All(parts) | Formula::Any(parts) => parts.iter_mut().for_each(|part| number(part, next)),
        }
    }

    fn formula() -> impl Strategy<Value = Formula> {
        let leaf = Just(Formula::Member(0)).boxed();
        let tree = leaf.prop_recursive(3, MEMBERS, 3, |part| {
            let parts = prop::collection::vec(part, 1..=3);
            prop_oneof![parts.clone().prop_map(Formula::All), parts.prop_map(Formula::Any)]
        });
        tree.prop_map(|mut formula| {
            number(&mut formula, &mut 0);
            formula
        })
    }

    fn rooms() -> impl Strategy<Value = Vec<Room>> {
        prop::collection::vec(prop_oneof![Just(Room::Enough), Just(Room::Lacking), Just(Room::NoSay)], 32)
    }

    /// The naive evaluator: whether the members with `has_room` suffice. Leaves members without a say out of the tree.
    fn suffices(formula: &Formula, rooms: &[Room], has_room: &dyn Fn(usize) -> bool) -> Option<bool> {
        match formula {
            Formula::Member(member) => (rooms[*member] != Room::NoSay).then(|| has_room(*member)),
            Formula::All(parts) => {
                parts.iter().filter_map(|part| suffices(part, rooms, has_room)).reduce(|all, part| all && part)
            }
            Formula::Any(parts) => {
                parts.iter().filter_map(|part| suffices(part, rooms, has_room)).reduce(|any, part| any || part)
            }
        }
    }

    proptest! {
        #![proptest_config(cases(256))]

        #[test]
        fn chosen_members_suffice_and_are_necessary(formula in formula(), rooms in rooms()) {
            let mut chosen = Vec::new();
            let room = formula.choose(&|member| rooms[member], &mut chosen);
            let holds = suffices(&formula, &rooms, &|member| rooms[member] == Room::Enough);
            let expected = match holds {
                Some(true) => Room::Enough,
                Some(false) => Room::Lacking,
                None => Room::NoSay,
            };
            prop_assert_eq!(room, expected);
            prop_assert_eq!(room == Room::Enough, !chosen.is_empty());
            if room == Room::Enough {
                prop_assert_eq!(suffices(&formula, &rooms, &|member| chosen.contains(&member)), Some(true));
                for left_out in &chosen {
                    let others = |member| member != *left_out && chosen.contains(&member);
                    prop_assert_eq!(suffices(&formula, &rooms, &others), Some(false));
                }
            }
        }

        /// Each of them lacks room, and if all of them had room, the request would have it, too.
        #[test]
        fn lacking_members_are_to_blame(formula in formula(), rooms in rooms()) {
            let mut lacking = Vec::new();
            formula.lacking(&|member| rooms[member], &mut lacking);
            prop_assert!(lacking.iter().all(|member| rooms[*member] == Room::Lacking));
            let is_rejected = formula.room(&|member| rooms[member]) == Room::Lacking;
            prop_assert_eq!(is_rejected, !lacking.is_empty());
            let cured = |member| rooms[member] == Room::Enough || lacking.contains(&member);
            prop_assert_ne!(suffices(&formula, &rooms, &cured), Some(false));
        }

        /// Finds a tree's wait by trying each instant.
        #[test]
        fn room_begins_exactly_after_the_wait(formula in formula(), waits in prop::collection::vec(0_u8..10, 32)) {
            let wait = formula.combine(&|member| Some(waits[member])).unwrap();
            let all = vec![Room::Enough; 32];
            for instant in 0..12 {
                let has_room = suffices(&formula, &all, &|member| waits[member] <= instant).unwrap();
                prop_assert_eq!(has_room, instant >= wait);
            }
        }

        /// Deciding on the rest, once its members are known, is deciding on the whole.
        #[test]
        fn the_rest_decides_like_the_whole(
            formula in formula(), rooms in rooms(), known in prop::collection::vec(any::<bool>(), 32),
        ) {
            let is_known = |member: usize| known[member] || rooms[member] == Room::NoSay;
            let rest = formula.rest(&|member| {
                if is_known(member) { Rest::Known(rooms[member]) } else { Rest::member(member) }
            });
            let mut chosen = Vec::new();
            let whole = formula.choose(&|member| rooms[member], &mut chosen);
            match rest {
                Rest::Known(room) => prop_assert_eq!(room, whole),
                Rest::Unknown => prop_assert!(false, "none is unknown"),
                Rest::Formula { formula: rest, ends_early } => {
                    let mut of_rest = Vec::new();
                    if rest.choose(&|member| rooms[member], &mut of_rest) == Room::Enough {
                        chosen.retain(|member| !is_known(*member));
                        prop_assert_eq!(of_rest, chosen);
                    } else if !ends_early {
                        prop_assert_eq!(whole, Room::Lacking);
                    }
                }
            }
        }
    }

    /// A bug made each level ask all members below it again.
    #[test]
    fn deep_formulas_ask_each_member_once() {
        let deep = (1..1_000).fold(Formula::Member(0), |inner, member| {
            let parts = vec![inner, Formula::Member(member)];
            if member % 2 == 0 { Formula::All(parts) } else { Formula::Any(parts) }
        });
        let asked = std::cell::Cell::new(0);
        let room = |_| {
            asked.set(asked.get() + 1);
            Room::Lacking
        };
        let mut lacking = Vec::new();
        assert_eq!((deep.lacking(&room, &mut lacking), lacking.len(), asked.get()), (Room::Lacking, 1_000, 1_000));
    }

    #[test]
    fn waits_withstand_the_counterexamples() {
        each("src/values/formula.rs: Formula::combine", |case| {
            let measures = ["", "other_"].map(|part| {
                let number = |name: &str| case.number::<u128>(&format!("{part}{name}"));
                (number("kind"), number("wait"))
            });
            let combined = |formula: fn(Vec<Formula>) -> Formula| {
                let members = [0, 1].map(Formula::Member).into();
                formula(members).combine(&|member| Some(measures[member])).unwrap()
            };
            let (all_kind, all_wait) = combined(Formula::All);
            let (any_kind, any_wait) = combined(Formula::Any);
            [("all_kind", all_kind), ("all_wait", all_wait), ("any_kind", any_kind), ("any_wait", any_wait)]
        });
    }
}
