//! Bans that grow, over all processes; and debts that several processes make at once.

use tower_sluice::algorithm::{FixedWindow, GcraState, TokenBucket};
use tower_sluice::store::remote::Standing;
use tower_sluice::time::{Clock, ManualClock, Timestamp};

use super::*;
use crate::backend::StandingChange;

const NOW: Timestamp = Timestamp::from_nanos(1_700_000_000_000_000_000);

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn debts_of_several_processes_add_up() {
    let clock = ManualClock::starting_at(NOW);
    let postgres = process(pool(8)).await.with_clock(clock.clone());
    let bucket = TokenBucket::new(Quota::per_hour(100).burst(10));
    let owe = |_| {
        let postgres = postgres.clone();
        tokio::spawn(async move {
            for _ in 0..10 {
                apply(&postgres, &bucket, 1, Transition::Owe { units: 3 }).await.expect("a minute is enough");
            }
        })
    };
    for task in (0..8).map(owe).collect::<Vec<_>>() {
        task.await.unwrap();
    }
    let applied = apply(&postgres, &bucket, 1, Transition::Read).await.unwrap();
    let (expected, _) =
        (0..80).fold((Standing::default(), None), |(standing, state), _| standing.charge(&bucket, state, NOW, 3));
    assert_eq!((applied.standing, applied.now), (expected, NOW));
    clock.set(expected.owing_until);
    let applied = apply(&postgres, &bucket, 1, Transition::Charge { cost: 1, count: 1 }).await.unwrap();
    assert_eq!((applied.standing, applied.charged), (Standing::default(), 0), "the debt is paid, the bucket empty");
}

/// While the clock is set back, all ends are moved with it.
#[tokio::test]
async fn a_clock_set_back_lengthens_no_ban() {
    let clock = ManualClock::starting_at(NOW);
    let postgres = process(pool(1)).await.with_clock(clock.clone());
    let window = FixedWindow::new(quota());
    let ban = Transition::Ban { span: MINUTE, growth: None };
    apply(&postgres, &window, 1, ban).await.unwrap();
    let earlier = Timestamp::from_nanos(NOW.as_nanos() - 1_000_000_000 * 86_400);
    clock.set(earlier);
    for _ in 0..2 {
        let read = apply(&postgres, &window, 1, Transition::Read).await.unwrap();
        assert_eq!(read.standing.banned_until, earlier.saturating_add(MINUTE));
        let charge = apply(&postgres, &window, 1, Transition::Charge { cost: 1, count: 1 }).await.unwrap();
        assert_eq!((charge.standing.banned_until, charge.charged), (earlier.saturating_add(MINUTE), 0));
    }
    clock.advance(MINUTE);
    let charge = apply(&postgres, &window, 1, Transition::Charge { cost: 1, count: 1 }).await.unwrap();
    assert_eq!((charge.standing, charge.charged), (Standing::default(), 1));
}

/// Bans a key like a penalty whose bans grow.
async fn ban(postgres: &Postgres) -> Applied<GcraState> {
    let change = StandingChange {
        spans: [1, 2, 4].map(|minutes| minutes * MINUTE).to_vec(),
        remembered: Some(10 * MINUTE),
        ..StandingChange::default()
    };
    row(postgres, &TokenBucket::new(quota()), 1).stand(change).await.expect("a server that works")
}

/// All processes count them together.
#[tokio::test]
async fn bans_grow_until_they_are_forgotten() {
    let clock = ManualClock::starting_at(NOW);
    let first = process(pool(1)).await.with_clock(clock.clone());
    let second = first.clone().with_pool(pool(1));
    let bucket = TokenBucket::new(quota());
    // Each ban in minutes, and how long after its end the next one begins.
    let bans = [(1, 0), (2, 9), (4, 0), (4, 9), (4, 11), (1, 1), (2, 10), (1, 0)];
    for (index, (minutes, pause)) in bans.into_iter().enumerate() {
        let postgres = if index % 2 == 0 { &first } else { &second };
        let end = clock.now().saturating_add(minutes * MINUTE);
        assert_eq!(ban(postgres).await.standing.banned_until, end, "ban {index}");
        // A ban that has begun ends when its first response said, and does not count again.
        clock.advance(Duration::from_nanos(1));
        assert_eq!(ban(postgres).await.standing.banned_until, end, "ban {index}");
        clock.set(end.saturating_add(pause * MINUTE));
        let charge = apply(postgres, &bucket, 1, Transition::Charge { cost: 1, count: 1 }).await.unwrap();
        assert_eq!(charge.charged, u32::from(charge.standing == Standing::default()), "ban {index}");
    }
}

/// A row is kept while its bans are remembered.
#[tokio::test]
async fn bans_without_a_debt_are_remembered() {
    let clock = ManualClock::starting_at(NOW);
    let postgres = process(pool(1)).await.with_clock(clock.clone());
    ban(&postgres).await;
    clock.advance(10 * MINUTE);
    apply(&postgres, &TokenBucket::new(quota()), 1, Transition::Charge { cost: 1, count: 1 }).await.unwrap();
    clock.advance(MINUTE - Duration::from_nanos(1));
    postgres.sweep(&"0".repeat(32), 100).await.unwrap();
    assert_eq!(ban(&postgres).await.standing.banned_until, clock.now().saturating_add(2 * MINUTE));
}
