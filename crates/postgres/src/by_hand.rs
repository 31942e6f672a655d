//! Charges by hand, once per reference: a reference is a record, which is written with its key's row.

use tower_sluice::LimiterError;
use tower_sluice::store::remote::accounts::Reference;
use tower_sluice::store::remote::{CallLimits, ChargeByHand, KeyRead, Replacement, Target};

use crate::backend::{PostgresBackend, Version};
use crate::kept::Kept;
use crate::records::micros;

impl PostgresBackend {
    /// The name of the record for a key's reference. No other limiter uses it, since the key's hash includes this
    /// limiter's name and algorithm.
    fn reference_name<A>(&self, target: &Target<'_, A>, reference: Reference) -> String {
        format!("{}:{}:h{}", self.name(), target.name(), reference.tag())
    }
}

impl<A: Kept> ChargeByHand<A> for PostgresBackend {
    type Version = Version;

    async fn read_key(
        &self,
        target: &Target<'_, A>,
        reference: Option<Reference>,
        limits: CallLimits,
    ) -> Result<KeyRead<A::State, Version>, LimiterError> {
        let reference = reference.map(|reference| self.reference_name(target, reference));
        let row = self.row(target);
        self.run_with_record(limits, async move { row.read_to_replace(reference).await }).await
    }

    async fn replace_key(
        &self,
        target: &Target<'_, A>,
        replacement: Replacement<A::State, Version>,
        limits: CallLimits,
    ) -> Result<bool, LimiterError> {
        let Replacement { read_at, version, state, standing, reference, known_for } = replacement;
        let reference = reference.map(|reference| (self.reference_name(target, reference), micros(known_for)));
        let row = self.row(target);
        let written = row.written(read_at, standing, Some(&state), version);
        self.run_with_record(limits, async move { row.replace(written, reference).await }).await
    }
}
