//! Policy trees, in which all policies or the first fitting one admit a request, with a naive evaluator.

use proptest::prelude::*;
use tower_sluice::Policy;
use tower_sluice::layer::IntoPolicies;
use tower_sluice::policy::Policies;

#[derive(Clone, Debug)]
pub enum Tree {
    Member(usize),
    All(Vec<Self>),
    Any(Vec<Self>),
}

impl Tree {
    /// A request's wait, given its members' waits; `None` if no member applies.
    pub fn wait(&self, of: &impl Fn(usize) -> Option<u64>) -> Option<u64> {
        match self {
            Self::Member(at) => of(*at),
            Self::All(parts) => parts.iter().filter_map(|part| part.wait(of)).max(),
            Self::Any(parts) => parts.iter().filter_map(|part| part.wait(of)).min(),
        }
    }

    /// The members that a request is charged to, if it passes.
    pub fn charged(&self, of: &impl Fn(usize) -> Option<u64>) -> Vec<usize> {
        let passes = |part: &&Self| part.wait(of) == Some(0);
        match self {
            Self::Member(at) => passes(&self).then_some(*at).into_iter().collect(),
            Self::All(parts) => parts.iter().filter(passes).flat_map(|part| part.charged(of)).collect(),
            Self::Any(parts) => parts.iter().find(passes).map_or(Vec::new(), |part| part.charged(of)),
        }
    }

    pub fn policies(&self, policy: &impl Fn(usize) -> Policy) -> Policies {
        match self {
            Self::Member(at) => policy(*at).into_policies(),
            Self::All(parts) => parts.iter().map(|part| part.policies(policy)).collect::<Vec<_>>().into_policies(),
            Self::Any(parts) => parts.iter().map(|part| part.policies(policy)).reduce(Policies::or_else).unwrap(),
        }
    }

    pub fn size(&self) -> usize {
        match self {
            Self::Member(_) => 1,
            Self::All(parts) | Self::Any(parts) => parts.iter().map(Self::size).sum(),
        }
    }

    fn number(&mut self, next: &mut usize) {
        match self {
            Self::Member(at) => (*at, *next) = (*next, *next + 1),
            Self::All(parts) | Self::Any(parts) => parts.iter_mut().for_each(|part| part.number(next)),
        }
    }
}

/// Random trees with at most eight members, which are numbered from 0 on.
pub fn trees() -> impl Strategy<Value = Tree> {
    let tree = Just(Tree::Member(0)).prop_recursive(3, 5, 3, |part| {
        let parts = prop::collection::vec(part, 1..=3);
        prop_oneof![parts.clone().prop_map(Tree::All), parts.prop_map(Tree::Any)]
    });
    let numbered = tree.prop_map(|mut tree| {
        tree.number(&mut 0);
        tree
    });
    numbered.prop_filter("a mask has eight bits", |tree| tree.size() <= 8)
}
