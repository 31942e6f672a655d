//! The tree of descriptors, and which rule matches.

use std::collections::{BTreeSet, HashMap};

use smallvec::SmallVec;
use tower_sluice::PartitionKey;

use super::super::{Descriptor, Select, Selected, joined};
use super::pattern::Pattern;

/// The descriptors of one list of the file, by their keys.
#[derive(Debug, Default)]
pub(super) struct Level(HashMap<String, Branches>);

/// The descriptors of one list that have the same key.
#[derive(Debug, Default)]
struct Branches {
    all: Vec<Branch>,
    /// The indices of those with a value, patterns included: a request may send the text of a pattern.
    by_value: HashMap<String, usize>,
    patterns: Patterns,
    without_value: Option<usize>,
}

/// A descriptor of the file.
#[derive(Debug)]
pub(super) struct Branch {
    /// The index of the rule, if the descriptor has a limit.
    pub(super) rule: Option<usize>,
    /// Whether each value of a request has a budget of its own.
    pub(super) splits_budget: bool,
    pub(super) level: Level,
}

impl Level {
    /// Adds a descriptor. Returns whether it was new.
    pub(super) fn add(&mut self, key: &str, value: Option<&str>, branch: Branch) -> bool {
        let branches = self.0.entry(key.to_owned()).or_default();
        let index = branches.all.len();
        let replaced = match value {
            None => branches.without_value.replace(index),
            Some(value) => branches.by_value.insert(value.to_owned(), index),
        };
        if let Some(pattern) = value.and_then(Pattern::new) {
            branches.patterns.add(pattern, index);
        }
        branches.all.push(branch);
        replaced.is_none()
    }

    /// Finds the descriptor for an entry: by its value, or else by the first pattern, or else by the key alone.
    fn find(&self, key: &str, value: &str) -> Option<&Branch> {
        let branches = self.0.get(key)?;
        let by_value = branches.by_value.get(value).copied();
        let index = by_value.or_else(|| branches.patterns.first_match(value)).or(branches.without_value)?;
        branches.all.get(index)
    }
}

/// The patterns of a list, each with its index there.
#[derive(Debug, Default)]
struct Patterns {
    /// In the order of the file, by the text before the first `*`: a file may have thousands.
    by_start: HashMap<String, Vec<(Pattern, usize)>>,
    /// The lengths of these texts.
    lengths: BTreeSet<usize>,
}

impl Patterns {
    fn add(&mut self, pattern: Pattern, index: usize) {
        self.lengths.insert(pattern.start().len());
        self.by_start.entry(pattern.start().to_owned()).or_default().push((pattern, index));
    }

    /// The index of the first pattern of the file that matches.
    fn first_match(&self, value: &str) -> Option<usize> {
        let starts = self.lengths.iter().map_while(|length| (*length <= value.len()).then(|| value.get(..*length)));
        let alike = starts.flatten().filter_map(|start| self.by_start.get(start));
        let first = |patterns: &Vec<(Pattern, usize)>| {
            patterns.iter().find(|(pattern, _)| pattern.matches(value)).map(|(_, index)| *index)
        };
        alike.filter_map(first).min()
    }
}

/// The names of a rule for `replaces`.
#[derive(Debug)]
pub(super) struct Replacement {
    /// The name that others may replace. A rule without a limit is never replaced.
    pub(super) name: Option<String>,
    pub(super) replaces: Vec<String>,
}

/// Selects at most one rule for each descriptor.
#[derive(Debug)]
pub(super) struct Tree {
    pub(super) root: Level,
    /// One for each rule.
    pub(super) replacements: Vec<Replacement>,
}

impl Tree {
    /// Finds the rule at the depth of the whole descriptor, and its key.
    fn find(&self, descriptor: &Descriptor) -> Option<(usize, PartitionKey)> {
        let mut values: SmallVec<[&str; 4]> = SmallVec::new();
        let mut level = &self.root;
        let mut rule = None;
        for (key, value) in &descriptor.entries {
            let branch = level.find(key, value)?;
            if branch.splits_budget {
                values.push(value.as_str());
            }
            level = &branch.level;
            rule = branch.rule;
        }
        Some((rule?, joined(&values)))
    }
}

impl Select for Tree {
    fn select(&self, descriptors: &[Descriptor]) -> Vec<Selected> {
        let mut selected = Vec::with_capacity(descriptors.len());
        for (index, descriptor) in descriptors.iter().enumerate() {
            if descriptor.has_own_limit {
                continue;
            }
            if let Some((rule, key)) = self.find(descriptor) {
                selected.push(Selected { descriptor: index, rule, key });
            }
        }
        // A rule that is replaced replaces others all the same.
        let replaced: Vec<&String> =
            selected.iter().flat_map(|selected| &self.replacements[selected.rule].replaces).collect();
        if !replaced.is_empty() {
            selected.retain(|selected| {
                let name = &self.replacements[selected.rule].name;
                !name.as_ref().is_some_and(|name| replaced.contains(&name))
            });
        }
        selected
    }
}
