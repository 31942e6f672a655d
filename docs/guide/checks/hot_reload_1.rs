// Included by a program in `docs/guide/hot_reload.md`.

{
    let limits = layer().handle();
    let peek = |limits: &LimitsHandle, address| {
        let status = futures_util::FutureExt::now_or_never(limits.peek("clients", address)).unwrap().unwrap();
        (status.decision().limit(), status.decision().remaining())
    };
    let _ = futures_util::FutureExt::now_or_never(limits.charge("clients", "192.0.2.1", 1_000_000)).unwrap().unwrap();
    assert_eq!(peek(&limits, "192.0.2.1"), (10, 0));
    raise(&limits).unwrap();
    assert_eq!([peek(&limits, "192.0.2.1"), peek(&limits, "192.0.2.2")], [(50, 0), (50, 50)], "used units stay used");
}
