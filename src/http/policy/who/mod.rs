//! The scope of a policy: the requests to which it applies, and the key of each.

mod exemptions;

use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

pub(super) use self::exemptions::Except;
pub use self::exemptions::{ExemptionError, Exemptions};
use crate::http::head::RequestHead;
use crate::http::key::{
    Global, KeyError, KeyExtractor, KeyTextError, SHARED, SameKeyCheck, bytes_of, key_of, missing_extension, text_of,
};
use crate::util::log;
use crate::values::PartitionKey;

/// The requests to which a policy applies, their keys, and checks of the first requests for mistakes.
pub(crate) struct Who {
    pub(crate) key: Box<dyn KeyExtractor>,
    pub(crate) on_missing_key: MissingKey,
    /// Whether a request may have several keys.
    pub(crate) has_several_keys: bool,
    pub(super) when: Option<Condition>,
    pub(super) except: Option<Box<Except>>,
    same_key: SameKeyCheck,
    /// The number of requests that lacked the extension of their key, until a warning is logged.
    without_extension: AtomicU32,
    misconfiguration: Once,
}

type Condition = Box<dyn Fn(&RequestHead<'_>) -> bool + Send + Sync>;

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

impl Who {
    /// All requests, with one key.
    pub(super) fn everybody() -> Self {
        Self {
            key: Box::new(Global),
            on_missing_key: MissingKey::default(),
            has_several_keys: false,
            when: None,
            except: None,
            same_key: SameKeyCheck::new(Global.is_shared()),
            without_extension: AtomicU32::new(0),
            misconfiguration: Once::new(),
        }
    }

    pub(super) fn set_key(&mut self, key: impl KeyExtractor) {
        self.same_key = SameKeyCheck::new(key.is_shared());
        self.has_several_keys = key.has_several();
        self.key = Box::new(key);
    }

    #[inline]
    pub(super) fn includes(&self, policy: &str, head: &RequestHead<'_>) -> bool {
        self.when.as_ref().is_none_or(|condition| condition(head))
            && !self.except.as_ref().is_some_and(|except| except.exempts(policy, head))
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
        if is_shared { Ok(PartitionKey::SHARED) } else { key_of(&*self.key, text) }
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

    /// Logs, once, that no request had the extension from which the key is read, or another mistake of the
    /// configuration.
    ///
    /// A request without the extension is rejected, and enough of them in a row are a mistake. If such requests are
    /// skipped, their clients may just not have logged in, so more are needed. Shared keys are checked by
    /// [`note_key`](Self::note_key).
    pub(super) fn note_missing_key(&self, policy: &str, is_shadow: bool, error: &KeyError) {
        if let KeyError::Misconfigured { problem } = error {
            self.misconfiguration.call_once(|| log::misconfigured(policy, problem));
        }
        let (enough, fate) = match self.on_missing_key {
            MissingKey::Reject if !is_shadow => (100, "were answered 400"),
            MissingKey::Reject | MissingKey::Skip => (1_000, "passed unlimited"),
            MissingKey::Share => return,
        };
        let Some(extension) = missing_extension(error) else { return };
        // Relaxed: nothing else depends on the count. Threads that have passed this check may add a few more, so it
        // cannot wrap around; exactly one thread reads `enough - 1`.
        if self.same_key.has_seen_a_key() || self.without_extension.load(Ordering::Relaxed) >= enough {
            return;
        }
        if self.without_extension.fetch_add(1, Ordering::Relaxed) == enough - 1 {
            log::no_extension(policy, extension, enough, fate);
        }
    }
}
