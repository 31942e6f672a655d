// Included by a program in `docs/guide/support.md`.

{
    async fn check() -> Result<(), LimiterError> {
        use tower_sluice::{Policy, Quota, RateLimitLayer, key::User};
        let limits = RateLimitLayer::new(Policy::new("pace", Quota::per_second(10)).key(User::key())).handle();
        assert_eq!(describe(&limits, "ada").await?, "pace: 10 of 10 left\n");
        let _ = limits.ban("pace", "ada", std::time::Duration::from_secs(3_601), "scrapes").await?;
        assert_eq!(describe(&limits, "ada").await?, "pace: 0 of 10 left, banned for another 3600 s: scrapes\n");
        Ok(())
    }
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(check()).unwrap();
}
