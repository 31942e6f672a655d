//! Charges by hand, once per reference. The reference is on the server, beside its key's state: one script checks it,
//! and replaces the state.

use std::time::Duration;

use tower_sluice::LimiterError;
use tower_sluice::store::remote::accounts::Reference;
use tower_sluice::store::remote::{CallLimits, ChargeByHand, KeyRead, Replacement, Target};

use super::backend::{RedisBackend, failed};
use crate::connection::Fault;
use crate::script::{self, KeyText, Scripted, Swap, TextUnder};

/// A key's text, if it has one.
type Text = Option<Box<[u8]>>;

impl<A: Scripted> ChargeByHand<A> for RedisBackend {
    type Version = Text;

    async fn read_key(
        &self,
        target: &Target<'_, A>,
        reference: Option<Reference>,
        limits: CallLimits,
    ) -> Result<KeyRead<A::State, Text>, LimiterError> {
        self.read_key(target, reference, limits).await.map_err(failed)
    }

    async fn replace_key(
        &self,
        target: &Target<'_, A>,
        replacement: Replacement<A::State, Text>,
        limits: CallLimits,
    ) -> Result<bool, LimiterError> {
        self.replace_key(target, replacement, limits).await.map_err(failed)
    }
}

impl RedisBackend {
    /// Uses the script that replaces a text, which only reads without one.
    async fn read_key<A: Scripted>(
        &self,
        target: &Target<'_, A>,
        reference: Option<Reference>,
        limits: CallLimits,
    ) -> Result<KeyRead<A::State, Text>, Fault> {
        let answer = self.scripts.call(self.swap_by_hand(target, reference, None, Duration::ZERO), limits).await?;
        let (now, holds) = (answer.now, answer.old(0)?);
        let text = KeyText::read(holds)?;
        let of_mark = |mark| self.quotas.of_mark(mark);
        let state = TextUnder::new(target, &of_mark).state_at(&text, now.max(text.standing.owing_until))?;
        let (standing, is_known) = (text.standing, answer.admitted == 2);
        Ok(KeyRead { now, state, standing, is_known, version: holds.map(Box::from) })
    }

    async fn replace_key<A: Scripted>(
        &self,
        target: &Target<'_, A>,
        replacement: Replacement<A::State, Text>,
        limits: CallLimits,
    ) -> Result<bool, Fault> {
        let Replacement { read_at, version, state, standing, reference, known_for } = replacement;
        let of_mark = |mark| self.quotas.of_mark(mark);
        let under = TextUnder::new(target, &of_mark);
        let quota = self.quotas.carried(target);
        let swap = under.replacing(version.as_deref(), read_at, quota, (standing, &state))?;
        let answer = self.scripts.call(self.swap_by_hand(target, reference, Some(swap), known_for), limits).await?;
        if answer.admitted == 0 {
            self.quotas.count(true);
        }
        Ok(answer.admitted == 1)
    }

    fn swap_by_hand<A: Scripted>(
        &self,
        target: &Target<'_, A>,
        reference: Option<Reference>,
        swap: Option<Swap>,
        known_for: Duration,
    ) -> script::ScriptCall {
        let tag = target.tag();
        let key = self.key::<A>(tag);
        match reference {
            Some(reference) => {
                let known = u64::try_from(known_for.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX);
                script::swap_once(key, self.names.reference(tag, reference.tag()), swap, known)
            }
            None => script::swap(key, swap),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tower_sluice::Quota;
    use tower_sluice::algorithm::{FixedWindow, SlidingWindow, TokenBucket};
    use tower_sluice::testing::{check_charges_by_hand, seed_of};

    use super::*;
    use crate::connection::Redis;
    use crate::support::servers::RedisServer;

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn charges_by_hand_pass_the_suite() {
        let server = RedisServer::start();
        let redis = Redis::single(server.url()).timeout(Duration::from_secs(60)).open().unwrap();
        let backend = |name| RedisBackend::new(&redis, name);
        let quota = Quota::per(7, Duration::from_secs(60));
        check_charges_by_hand(TokenBucket::new(quota.burst(9)), backend("bucket"), seed_of(1)).await;
        check_charges_by_hand(FixedWindow::new(quota), backend("fixed"), seed_of(2)).await;
        check_charges_by_hand(SlidingWindow::new(quota), backend("sliding"), seed_of(3)).await;
        #[cfg(feature = "calendar")]
        {
            let window = tower_sluice::algorithm::CalendarWindow::daily(7);
            check_charges_by_hand(window, backend("calendar"), seed_of(4)).await;
        }
    }
}
