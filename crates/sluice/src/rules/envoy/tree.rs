//! The tree of descriptors, and how a rule is found in it.

use std::collections::{BTreeSet, HashMap};

use smallvec::SmallVec;
use tower_sluice::PartitionKey;

use super::super::{Descriptor, Select, Selected, joined};
use super::pattern::Pattern;

/// The descriptors in one list in the file, by key.
#[derive(Debug, Default)]
pub(super) struct Level(HashMap<String, Branches>);

/// The descriptors with one key in one list.
#[derive(Debug, Default)]
struct Branches {
    all: Vec<Branch>,
    /// The indices of those with a value, patterns included, since a request may send a pattern's text.
    by_value: HashMap<String, usize>,
    patterns: Patterns,
    without_value: Option<usize>,
}

/// A descriptor in the file.
#[derive(Debug)]
pub(super) struct Branch {
    /// The rule's index, if the descriptor has a limit.
    pub(super) rule: Option<usize>,
    /// Whether each value that requests have gets a separate budget.
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

    /// Finds the descriptor for an entry: by its value, otherwise by the first pattern, otherwise by the key alone.
    fn find(&self, key: &str, value: &str) -> Option<&Branch> {
        let branches = self.0.get(key)?;
        let by_value = branches.by_value.get(value).copied();
        let index = by_value.or_else(|| branches.patterns.first_match(value)).or(branches.without_value)?;
        branches.all.get(index)
    }
}

/// A list's patterns, each with its index in the list.
#[derive(Debug, Default)]
struct Patterns {
    /// In the file's order, by the text before the first `*`, because a file may have thousands.
    by_start: HashMap<String, Vec<(Pattern, usize)>>,
    /// The lengths of these texts.
    lengths: BTreeSet<usize>,
}

impl Patterns {
    fn add(&mut self, pattern: Pattern, index: usize) {
        self.lengths.insert(pattern.start().len());
        self.by_start.entry(pattern.start().to_owned()).or_default().push((pattern, index));
    }

    /// Returns the index of the file's first pattern that matches.
    fn first_match(&self, value: &str) -> Option<usize> {
        let starts = self.lengths.iter().map_while(|length| (*length <= value.len()).then(|| value.get(..*length)));
        let alike = starts.flatten().filter_map(|start| self.by_start.get(start));
        let first = |patterns: &Vec<(Pattern, usize)>| {
            patterns.iter().find(|(pattern, _)| pattern.matches(value)).map(|(_, index)| *index)
        };
        alike.filter_map(first).min()
    }
}

/// A rule's names for `replaces`.
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
    /// Finds the rule at the descriptor's full depth, and its key.
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
        // A rule that is replaced still replaces others.
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
