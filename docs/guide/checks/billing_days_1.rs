// Included by a program in `docs/guide/billing_days.md`.

async fn a_month_begins_on_the_billing_day(app: Router) -> Result<(), Box<dyn std::error::Error>> {
    let request = http::Request::get("/").body(axum::body::Body::empty())?;
    let response = tower::ServiceExt::oneshot(app, request).await?;
    assert_eq!(response.headers()["ratelimit-policy"], r#""month";q=10000"#);
    let left = response.headers()["ratelimit"].to_str()?.to_owned();
    let seconds: u64 = left.strip_prefix(r#""month";r=9999;t="#).unwrap().parse()?;
    // As long as the month from the 17th in Berlin still lasts; unless it ends at this moment.
    let month = CalendarWindow::monthly(1).anchor(17).zone("Europe/Berlin")?;
    let now = tower_sluice::time::Clock::now(&tower_sluice::time::Monotonic);
    let ends = tower_sluice::algorithm::Algorithm::decide(&month, None, now, 0).0.reset_after().as_secs();
    assert!(seconds.abs_diff(ends) < 3_600 || seconds < 3_600, "{seconds} and {ends}");
    Ok(())
}
