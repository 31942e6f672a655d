//! Applies an edited file while its layers run.

use std::collections::HashMap;
use std::fmt;
use std::ops::Range;

use toml::Spanned;

use super::answer::Answer;
use super::error::{ConfigError, Source};
use super::raw::{RawAnswer, RawClientIp, RawConfig, RawPolicy, RawRedis};
use super::{Common, Config, Draft, Route};
use crate::util::log;

/// The settings that only a restart changes, except the paths.
pub(super) struct Fixed {
    client_ip: Option<RawClientIp>,
    redis: Option<RawRedis>,
    answer: Option<RawAnswer>,
}

impl Fixed {
    pub(super) fn of(raw: &RawConfig) -> Self {
        Self { client_ip: inner(&raw.client_ip), redis: inner(&raw.redis), answer: inner(&raw.answer) }
    }

    fn check(&self, source: &Source<'_>, raw: &RawConfig) -> Result<(), ConfigError> {
        same(source, "[client-ip]", &self.client_ip, &raw.client_ip)?;
        same(source, "[redis]", &self.redis, &raw.redis)?;
        same(source, "[answer]", &self.answer, &raw.answer)
    }
}

impl fmt::Debug for Fixed {
    /// Prints no setting, since an address may hold a password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fixed").finish_non_exhaustive()
    }
}

fn inner<T: Clone>(spanned: &Option<Spanned<T>>) -> Option<T> {
    spanned.as_ref().map(|spanned| spanned.get_ref().clone())
}

fn same<T: PartialEq>(
    source: &Source<'_>,
    what: &str,
    before: &Option<T>,
    after: &Option<Spanned<T>>,
) -> Result<(), ConfigError> {
    if before.as_ref() == after.as_ref().map(Spanned::get_ref) {
        return Ok(());
    }
    let at = after.as_ref().map_or(0..0, Spanned::span);
    Err(restart(source, &at, format_args!("{what} differs from the one at the start")))
}

fn restart(source: &Source<'_>, at: &Range<usize>, problem: impl fmt::Display) -> ConfigError {
    source.error(at, format_args!("{problem}; restore it, or restart the server to change this"))
}

/// The result of a change of a configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changed {
    not_inherited: Vec<(String, String)>,
    removed: Vec<(String, String)>,
}

impl Changed {
    /// Returns the policies whose keys all lose their state, each after the first path of its route: see
    /// [`Replaced::not_inherited`](crate::Replaced::not_inherited).
    #[must_use]
    pub fn not_inherited(&self) -> &[(String, String)] {
        &self.not_inherited
    }

    /// Returns the policies that the new text no longer has, each after the first path of its route. They are logged as
    /// warnings: a truncated file may still be valid.
    #[must_use]
    pub fn removed(&self) -> &[(String, String)] {
        &self.removed
    }
}

impl Config {
    /// Replaces the policies in force by those of an edited text, in all layers of this configuration, while they run.
    /// Consumed quota carries over, see [`LimitsHandle`](crate::LimitsHandle).
    ///
    /// Policies may be added, removed and changed in all their settings. Routes may change their order. The paths,
    /// `[client-ip]`, `[redis]`, `[answer]`, `exempt-preflights`, and whether a route is limited at all are fixed. To
    /// switch a policy off, write `shadow = true`.
    ///
    /// The whole text is parsed and checked before the first route changes. Each route changes atomically, one after
    /// the other. Policies that the text no longer has, and optional fields that a policy no longer has (except
    /// `shadow`), are logged by name at `WARN`: a file that was truncated while it was written may still be valid.
    ///
    /// ```
    /// use tower_sluice::config::Config;
    ///
    /// let text = |limit| format!(r#"
    ///     [[route]]
    ///     path = "/api"
    ///       [[route.policy]]
    ///       name = "everybody"
    ///       algorithm = "token-bucket"
    ///       limit = {limit}
    ///       per = "1s"
    /// "#);
    /// let mut config = Config::parse("limits.toml", &text(10))?;
    /// let layer = config.routes()[0].layer().cloned();
    ///
    /// // Now `layer` enforces the new limit.
    /// config.change("limits.toml", &text(20))?;
    ///
    /// let error = config.change("limits.toml", &text(0)).unwrap_err();
    /// assert!(error.to_string().starts_with("limits.toml:7: limit = 0 is out of range"));
    /// # Ok::<_, tower_sluice::config::ConfigError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`parse`](Self::parse), and if a fixed setting changes. Nothing is changed then.
    pub fn change(&mut self, file: &str, text: &str) -> Result<Changed, ConfigError> {
        let source = Source::new(file, text);
        let raw: RawConfig = source.read()?;
        self.fixed.check(&source, &raw)?;
        // The layers keep the answers that they were built with.
        let common = Common { client_ip: &self.client_ip, answer: Answer::default(), redis: self.redis.as_ref() };
        let drafts = common.read(&source, raw.route)?;
        let indices = self.match_routes(&source, &drafts)?;

        let mut changed = Changed::default();
        for (index, draft) in indices.into_iter().zip(drafts) {
            let route = &mut self.routes[index];
            let path = route.paths[0].clone();
            log_removed_fields(route, &draft);
            (route.line, route.optional) = (source.line(&draft.at), draft.optional);
            if let (Some(layer), Some(policies)) = (&route.layer, draft.policies) {
                let replaced = layer.handle().enforce(policies);
                let after_path = |policy: &String| (path.clone(), policy.clone());
                changed.not_inherited.extend(replaced.not_inherited().iter().map(after_path));
                changed.removed.extend(replaced.removed().iter().map(after_path));
            }
        }
        for (path, policy) in &changed.removed {
            log::policy_removed(path, policy);
        }
        Ok(changed)
    }

    /// Returns the index of each draft's route. Drafts and routes match one to one.
    fn match_routes(&self, source: &Source<'_>, drafts: &[Draft]) -> Result<Vec<usize>, ConfigError> {
        let mut left: HashMap<_, _> =
            self.routes.iter().enumerate().map(|(index, route)| (&*route.paths, index)).collect();
        let mut indices = Vec::with_capacity(drafts.len());
        for draft in drafts {
            let Some(index) = left.remove(&*draft.paths) else {
                return Err(restart(source, &draft.at, "these paths are not those of any route at the start"));
            };
            Self::check(source, &self.routes[index], draft)?;
            indices.push(index);
        }
        if let Some(index) = left.into_values().min() {
            let problem = format_args!("the route of path `{}` is missing", self.routes[index].paths[0]);
            return Err(restart(source, &source.end(), problem));
        }
        Ok(indices)
    }

    /// Checks that a draft changes only what may change.
    fn check(source: &Source<'_>, route: &Route, draft: &Draft) -> Result<(), ConfigError> {
        if route.answer != draft.answer {
            return Err(restart(source, &draft.at, "the answer of this route differs from the one at the start"));
        }
        if route.exempt_preflights != draft.exempt_preflights {
            return Err(restart(
                source,
                &draft.at,
                "exempt-preflights of this route differs from the one at the start",
            ));
        }
        if route.layer.is_some() != draft.policies.is_some() {
            let problem = match &route.layer {
                Some(_) => "this route no longer has a policy (to switch one off, write shadow = true)",
                None => "this route had no policy at the start",
            };
            return Err(restart(source, &draft.at, problem));
        }
        Ok(())
    }
}

/// Returns the optional fields of a policy that the file sets. Without `shadow`: removing it is how a shadow policy
/// becomes enforced.
pub(super) fn optional_fields(raw: &RawPolicy) -> Vec<&'static str> {
    let fields = [
        ("burst", raw.burst.is_some()),
        ("capacity", raw.capacity.is_some()),
        ("max-wait", raw.max_wait.is_some()),
        ("key", raw.key.is_some()),
        ("cost", raw.cost.is_some()),
        ("store", raw.store.is_some()),
        ("on-store-error", raw.on_store_error.is_some()),
        ("on-missing-key", raw.on_missing_key.is_some()),
        ("status", raw.status.is_some()),
        ("charge-on", raw.charge_on.is_some()),
        ("penalty", raw.penalty.is_some()),
    ];
    fields.into_iter().filter(|(_, is_set)| *is_set).map(|(field, _)| field).collect()
}

/// Logs the optional fields that were removed from policies which the file still has.
fn log_removed_fields(route: &Route, draft: &Draft) {
    let after: HashMap<_, _> = draft.optional.iter().map(|(name, fields)| (name, fields)).collect();
    for (name, before) in &route.optional {
        let Some(after) = after.get(name) else { continue };
        let gone: Vec<_> = before.iter().copied().filter(|field| !after.contains(field)).collect();
        if !gone.is_empty() {
            log::fields_removed(&route.paths[0], name, &gone.join(", "));
        }
    }
}
