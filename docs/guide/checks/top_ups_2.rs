// Included by a program in `docs/guide/top_ups.md`.

{
    use tower_sluice::key::User;
    use tower_sluice::{FixedWindow, Policy, Quota, RateLimitLayer};
    let included = Policy::new("included", FixedWindow::new(Quota::per_day(1_000))).key(User::key());
    let limits = RateLimitLayer::new(included).handle();
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
        assert_eq!(charge_job(&limits, "alice", "job-4711", 1_200).await.unwrap(), 0);
        // It is entered once, however often it is reported, and another customer's units stay.
        let again = Debit::units(1_200).reference("job-4711");
        assert!(limits.charge("included", "alice", again).await.unwrap().is_repeated());
        assert_eq!(limits.peek("included", "bob").await.unwrap().decision().remaining(), 1_000);
    });
}
