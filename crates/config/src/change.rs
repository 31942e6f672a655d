//! Applies an edited file while its layers run.

use std::collections::HashMap;
use std::fmt;
use std::ops::Range;

use toml::Spanned;

use super::error::ConfigError;
use super::format::{RawClientIp, RawConfig, RawPolicy, RawRedis, RawResponse, RawSnapshot, RawStores, TableKeys};
use super::response::ResponseSettings;
use super::source::SourceText;
use super::{Config, Draft, DraftPolicies, Route, SharedSettings};
use crate::log;

/// The tables that only a restart changes. A route has more such settings: see [`Route::check_fixed`].
pub(crate) struct FixedTables {
    client_ip: Option<RawClientIp>,
    redis: Option<RawRedis>,
    store: Option<RawStores>,
    snapshot: Option<RawSnapshot>,
    response: Option<RawResponse>,
}

impl FixedTables {
    pub(crate) fn read(raw: &RawConfig) -> Self {
        let RawConfig { client_ip, redis, store, snapshot, response, route: _ } = raw;
        Self {
            client_ip: inner(client_ip),
            redis: inner(redis),
            store: inner(store),
            snapshot: inner(snapshot),
            response: inner(response),
        }
    }

    fn check(&self, source: &SourceText<'_>, raw: &RawConfig) -> Result<(), ConfigError> {
        // Every table is listed, so that a new one does not compile before it is compared.
        let Self { client_ip, redis, store, snapshot, response } = self;
        check_same(source, "[client-ip]", client_ip, &raw.client_ip)?;
        check_same(source, "[redis]", redis, &raw.redis)?;
        check_same(source, "[store]", store, &raw.store)?;
        check_same(source, "[snapshot]", snapshot, &raw.snapshot)?;
        check_same(source, "[response]", response, &raw.response)
    }
}

impl fmt::Debug for FixedTables {
    /// Prints no setting, since an address may hold a password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FixedTables").finish_non_exhaustive()
    }
}

fn inner<T: Clone>(spanned: &Option<Spanned<T>>) -> Option<T> {
    spanned.as_ref().map(|spanned| spanned.get_ref().clone())
}

/// Checks that a table is as it was at the start.
fn check_same<T: PartialEq>(
    source: &SourceText<'_>,
    table: &str,
    before: &Option<T>,
    after: &Option<Spanned<T>>,
) -> Result<(), ConfigError> {
    match (before, after) {
        (None, None) => Ok(()),
        (Some(before), Some(after)) if before == after.get_ref() => Ok(()),
        (Some(_), Some(after)) => {
            Err(needs_restart(source, &after.span(), format_args!("{table} differs from the one at the start")))
        }
        (Some(_), None) => Err(needs_restart(source, &source.end(), format_args!("{table} is missing"))),
        (None, Some(after)) => {
            Err(needs_restart(source, &after.span(), format_args!("there was no {table} at the start")))
        }
    }
}

/// Makes the error for a change that the running layers cannot follow.
fn needs_restart(source: &SourceText<'_>, at: &Range<usize>, problem: impl fmt::Display) -> ConfigError {
    source.error(at, format_args!("{problem}; undo this change, or restart the server to apply it"))
}

/// The result of changing a configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changed {
    not_inherited: Vec<(String, String)>,
    removed: Vec<(String, String)>,
}

/// A line for your program's log: `all policies kept their state`, or `lost their state: /a api, /b api; removed: /b
/// login`.
impl fmt::Display for Changed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |what, policies: &[(String, String)]| {
            let names: Vec<_> = policies.iter().map(|(route, policy)| format!("{route} {policy}")).collect();
            (!names.is_empty()).then(|| format!("{what}: {}", names.join(", ")))
        };
        let lists = [list("lost their state", &self.not_inherited), list("removed", &self.removed)];
        let lists: Vec<_> = lists.into_iter().flatten().collect();
        match lists.is_empty() {
            true => f.write_str("all policies kept their state"),
            false => f.write_str(&lists.join("; ")),
        }
    }
}

impl Changed {
    /// Returns the policies whose keys all lose their state, each after its route's first path: see
    /// [`Replaced::not_inherited`](tower_sluice::layer::Replaced::not_inherited).
    #[must_use]
    pub fn not_inherited(&self) -> &[(String, String)] {
        &self.not_inherited
    }

    /// Returns the policies that the new text no longer has, each after its route's first path. They are logged as
    /// warnings, because a truncated file may still be valid.
    #[must_use]
    pub fn removed(&self) -> &[(String, String)] {
        &self.removed
    }
}

impl Config {
    /// Replaces the policies in force with the policies in an edited text, in all layers of this configuration, while
    /// they run. Consumed quota carries over, see [`LimitsHandle`](tower_sluice::LimitsHandle).
    ///
    /// Policies may be added, removed and changed in all their settings. Routes may change their order. Everything else
    /// is fixed: `[client-ip]`, `[redis]`, `[store]` and `[response]`, and for each route its paths, its
    /// `path-ignores`, its `response`, its `exempt-preflights`, and whether it has a policy at all. To switch a policy
    /// off, write `shadow = true`.
    ///
    /// The whole text is parsed and checked before the first route changes. Each route changes atomically, one after
    /// the other. A route whose text is unchanged is left as it is, with its limiters' tables. Policies that the text
    /// no longer has, and optional fields that a policy no longer has (except `shadow` and `suspended`), are logged by
    /// name at `WARN`, because a file that was truncated while it was written may still be valid.
    ///
    /// ```
    /// use tower_sluice_config::Config;
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
    /// # Ok::<_, tower_sluice_config::ConfigError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// As [`parse`](Self::parse), and if a fixed setting changes. Then nothing is changed.
    pub fn change(&mut self, file: &str, text: &str) -> Result<Changed, ConfigError> {
        let source = SourceText::new(file, text);
        let raw: RawConfig = source.parse_toml()?;
        self.fixed_tables.check(&source, &raw)?;
        // The layers keep the responses that they were built with.
        let shared = SharedSettings {
            client_ip: &self.client_ip,
            custom_keys: self.custom_keys.as_deref(),
            response: ResponseSettings::default(),
            stores: &self.stores,
        };
        let in_force: HashMap<_, _> = self.routes.iter().map(|route| (&*route.paths, &route.written)).collect();
        let is_in_force = |paths: &[String], written: &toml::Value| in_force.get(paths) == Some(&written);
        let drafts = shared.read_routes(&source, raw.route, is_in_force)?;
        let indices = self.match_routes(&source, &drafts)?;

        let mut changed = Changed::default();
        for (index, draft) in indices.into_iter().zip(drafts) {
            let route = &mut self.routes[index];
            let path = route.paths[0].clone();
            log_removed_fields(route, &draft);
            route.line = source.line(&draft.span);
            route.optional_fields = draft.optional_fields;
            route.written = draft.written;
            if let (Some(layer), DraftPolicies::New(policies)) = (&route.layer, draft.policies) {
                // Cannot fail, because they were validated above.
                let replaced = layer.handle().replace(policies).map_err(|error| source.error(&draft.span, error))?;
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
    fn match_routes(&self, source: &SourceText<'_>, drafts: &[Draft]) -> Result<Vec<usize>, ConfigError> {
        let mut left: HashMap<_, _> =
            self.routes.iter().enumerate().map(|(index, route)| (&*route.paths, index)).collect();
        let mut indices = Vec::with_capacity(drafts.len());
        for draft in drafts {
            let Some(index) = left.remove(&*draft.paths) else {
                return Err(needs_restart(source, &draft.span, "these paths are not those of any route at the start"));
            };
            self.routes[index].check_fixed(source, draft)?;
            indices.push(index);
        }
        if let Some(index) = left.into_values().min() {
            let problem = format!("the route of path `{}` is missing", self.routes[index].paths[0]);
            return Err(needs_restart(source, &source.end(), problem));
        }
        Ok(indices)
    }
}

impl Route {
    /// Checks that a draft for this route changes only its policies.
    fn check_fixed(&self, source: &SourceText<'_>, draft: &Draft) -> Result<(), ConfigError> {
        // Every field is listed, so that a new one does not compile before it is compared.
        let Draft {
            raw_response,
            raw_preflights,
            raw_ignores,
            policies,
            span,
            // Routes are matched by these.
            paths: _,
            // Parsed from the raw ones.
            response: _,
            preflight_budget: _,
            // A change may alter these.
            written: _,
            optional_fields: _,
        } = draft;
        let problem = if self.raw_response != *raw_response {
            "the [response] of this route differs from the one at the start"
        } else if self.raw_preflights != *raw_preflights {
            "exempt-preflights of this route differs from the one at the start"
        } else if self.raw_ignores != *raw_ignores {
            "path-ignores of this route differs from the one at the start"
        } else {
            match (&self.layer, policies) {
                (_, DraftPolicies::InForce) => return Ok(()),
                (Some(_), DraftPolicies::New(_)) | (None, DraftPolicies::None) => return Ok(()),
                (Some(_), DraftPolicies::None) => {
                    "this route no longer has a policy (to switch one off, write shadow = true)"
                }
                (None, DraftPolicies::New(_)) => "this route had no policy at the start",
            }
        };
        Err(needs_restart(source, span, problem))
    }
}

/// Returns a policy's optional fields that the file sets, without `shadow` and `suspended`, because removing one is how
/// a policy is enforced again.
///
/// `has_exemptions` says whether its route has exemptions, which apply to its policies, too.
pub(crate) fn optional_fields(raw: &RawPolicy, has_exemptions: bool) -> Vec<&'static str> {
    // `per` is optional for one algorithm alone.
    let mut fields = raw.optional();
    fields.retain(|field| !matches!(*field, "per" | "shadow" | "suspended"));
    if has_exemptions && raw.exempt.is_none() {
        fields.push("exempt");
    }
    fields
}

/// Logs the optional fields that were removed from policies that are still in the file.
fn log_removed_fields(route: &Route, draft: &Draft) {
    let after: HashMap<_, _> = draft.optional_fields.iter().map(|(name, fields)| (name, fields)).collect();
    for (name, before) in &route.optional_fields {
        let Some(after) = after.get(name) else { continue };
        let gone: Vec<_> = before.iter().copied().filter(|field| !after.contains(field)).collect();
        if !gone.is_empty() {
            log::fields_removed(&route.paths[0], name, &gone.join(", ").replace('_', "-"));
        }
    }
}
