//! The scope of a policy: the requests to which it applies, and the key of each.

use std::sync::Once;

use crate::engine::domain::{Domain, Reads};
use crate::engine::key::{
    Global, KeyError, KeyExtractor, KeyTextError, Length, SHARED, SameKeyCheck, Streak, bytes_of, key_of_text, text_of,
};
use crate::engine::policy::log;
use crate::values::PartitionKey;

/// The requests to which a policy applies, their keys, and checks of the first requests for mistakes.
pub(crate) struct Selector<D: Domain> {
    pub(crate) key: Box<dyn KeyExtractor<D>>,
    pub(crate) on_missing_key: MissingKey,
    /// Whether a request may have several keys.
    pub(crate) has_several_keys: bool,
    pub(super) when: Option<Reads<D, bool>>,
    pub(crate) except: Option<Exception<D>>,
    same_key: SameKeyCheck,
    /// The requests without a key, until one has a key.
    without_key: Streak<100>,
    /// The requests that the conditions have left out, until they let one in.
    left_out: Streak<1_000>,
    misconfiguration: Once,
}

/// Returns whether a request is exempt from the policy of this name. A closure, so that a program without exemptions is
/// not linked with them.
type Exception<D> = Box<dyn Fn(&str, &<D as Domain>::Subject<'_>) -> bool + Send + Sync>;

/// Writes the keys of a policy as its operators type them.
pub(crate) trait WritesKeys: Send + Sync {
    fn text_of(&self, key: &PartitionKey) -> String;
}

impl<D: Domain> WritesKeys for Selector<D> {
    fn text_of(&self, key: &PartitionKey) -> String {
        self.text_of(key)
    }
}

/// How a policy treats a request without a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
#[doc(alias = "anonymous")]
pub enum MissingKey {
    /// Rejects it with 400. The default: a client gains nothing by omitting the key.
    #[default]
    Reject,
    /// Does not apply to it. Sensible only together with another policy that applies.
    Skip,
    /// Charges it to one budget that all requests without a key share.
    Share,
}

impl<D: Domain> Selector<D> {
    /// All requests, with one key.
    pub(super) fn everybody() -> Self {
        Self {
            key: Box::new(Global),
            on_missing_key: MissingKey::default(),
            has_several_keys: false,
            when: None,
            except: None,
            same_key: SameKeyCheck::new(true),
            without_key: Streak::new(),
            left_out: Streak::new(),
            misconfiguration: Once::new(),
        }
    }

    pub(super) fn set_key(&mut self, key: impl KeyExtractor<D>) {
        self.same_key = SameKeyCheck::new(key.is_shared());
        self.has_several_keys = key.has_several();
        self.key = Box::new(key);
    }

    /// Whether a request may be charged on several keys. Every field is listed, so that a new one does not compile
    /// before it is known whether it needs more than one call of the limiter per request, too.
    pub(super) const fn asks_several_keys(&self) -> bool {
        let Self {
            has_several_keys,
            key: _,
            on_missing_key: _,
            when: _,
            except: _,
            same_key: _,
            without_key: _,
            left_out: _,
            misconfiguration: _,
        } = self;
        *has_several_keys
    }

    #[inline]
    pub(super) fn includes(&self, policy: &str, head: &D::Subject<'_>) -> bool {
        self.includes_all() || self.meets_conditions(policy, head)
    }

    /// Whether the policy has no conditions, so that it applies to all requests with a key.
    #[inline]
    pub(super) const fn includes_all(&self) -> bool {
        self.when.is_none() && self.except.is_none()
    }

    /// Logs, once, if all of the first 1,000 requests are left out. A condition may leave out the first request or the
    /// first hundred, by intention.
    #[inline]
    fn meets_conditions(&self, policy: &str, head: &D::Subject<'_>) -> bool {
        let is_included = self.when.as_ref().is_none_or(|condition| condition(head))
            && !self.except.as_ref().is_some_and(|exempts| exempts(policy, head));
        if !self.left_out.is_decided() {
            if is_included {
                self.left_out.interrupt();
            } else if self.left_out.grows_long() {
                log::never_applies(policy);
            }
        }
        is_included
    }

    /// The key that requests without a key share, if this one lacks its key and they share one.
    pub(crate) fn key_without(&self, error: &KeyError) -> Option<PartitionKey> {
        let is_missing = matches!(error, KeyError::Missing { .. });
        (is_missing && self.on_missing_key == MissingKey::Share).then_some(PartitionKey::SHARED)
    }

    /// Returns a key as an operator types it. [`key_of_text`](Self::key_of_text) reads this key from it, and no other
    /// key has this text.
    pub(crate) fn text_of(&self, key: &PartitionKey) -> String {
        let shares = self.on_missing_key == MissingKey::Share;
        if shares && *key == PartitionKey::SHARED {
            return SHARED.to_owned();
        }
        let text = text_of(&*self.key, key);
        if shares && text == SHARED { bytes_of(key) } else { text }
    }

    /// Says what the keys are as text: as the error does that an operator gets for a text that is none.
    pub(crate) fn keys_as_text(&self) -> String {
        let keys = match self.key.read_text("") {
            Err(error) => error.expected().to_owned(),
            Ok(key) if key == PartitionKey::SHARED => format!("{SHARED}, the key that all requests share"),
            Ok(_) => "text".to_owned(),
        };
        match self.on_missing_key {
            MissingKey::Share => format!("{keys}, or {SHARED} for requests without a key"),
            MissingKey::Reject | MissingKey::Skip => keys,
        }
    }

    /// Reads a key as an operator types it.
    ///
    /// # Errors
    ///
    /// If no request has such a key.
    pub(crate) fn key_of_text(&self, text: &str) -> Result<PartitionKey, KeyTextError> {
        let is_shared = text.trim() == SHARED && self.on_missing_key == MissingKey::Share;
        if is_shared { Ok(PartitionKey::SHARED) } else { key_of_text(&*self.key, text) }
    }

    /// Whether the policy applies to some requests only.
    pub(crate) const fn is_conditional(&self) -> bool {
        self.when.is_some() || self.except.is_some() || matches!(self.on_missing_key, MissingKey::Skip)
    }

    /// Logs if the first 1,000 keys are the same. Called with every key that is extracted; costs one relaxed load
    /// once the check has ended.
    #[inline]
    pub(super) fn note_key(&self, policy: &str, key: &PartitionKey) {
        if self.same_key.record(key) {
            log::one_key_for_all(policy);
        }
    }

    /// Logs, once, that the server does not provide the key; and that requests have no key, at the first request and
    /// at the hundredth, unless a request before had one.
    pub(super) fn note_missing_key(&self, policy: &str, is_shadow: bool, error: &KeyError) {
        if let KeyError::Misconfigured { problem } = error {
            self.misconfiguration.call_once(|| log::misconfigured(policy, problem));
            return;
        }
        if self.same_key.has_seen_a_key() || self.without_key.is_decided() {
            return;
        }
        let Some(length) = self.without_key.extend() else { return };
        let is_missing = matches!(error, KeyError::Missing { .. });
        let fate = match self.on_missing_key {
            MissingKey::Share if is_missing => "charged to one budget that they share",
            MissingKey::Skip if is_missing => "passed unlimited",
            _ if is_shadow => "passed unlimited",
            _ => "answered 400",
        };
        let line = log::WithoutKey { policy, problem: error, extension: error.extension(), fate };
        match length {
            Length::First => log::first_without_key(line),
            Length::Long => log::no_request_had_a_key(line),
        }
    }
}
