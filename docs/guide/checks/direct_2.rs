// Included by a program in `docs/guide/direct.md`.

{
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
    let sent = runtime.block_on(send_all(1_000)).unwrap();
    assert!((601..=605).contains(&sent), "{sent}");
}
