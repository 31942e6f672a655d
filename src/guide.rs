#![doc = include_str!("../docs/guide/links.txt")]
#![doc = include_str!("../docs/guide/README.md")]
// The pages link to items of all features, even if some are off.
#![cfg_attr(not(feature = "calendar"), allow(rustdoc::broken_intra_doc_links))]

/// Makes a module for each page. The pages need all features, as docs.rs has them.
///
/// A page ends with definitions of its links, for a browser of the repository. `links.txt` defines the same links for
/// rustdoc. It comes first here, and the first definition of a link counts (CommonMark, section 4.7).
macro_rules! pages {
    ($($name:ident)+) => {$(
        #[cfg_attr(
            all(feature = "axum", feature = "calendar", feature = "metrics", feature = "tonic"),
            doc = include_str!("../docs/guide/links.txt"),
            doc = include_str!(concat!("../docs/guide/", stringify!($name), ".md"))
        )]
        #[cfg_attr(
            not(all(feature = "axum", feature = "calendar", feature = "metrics", feature = "tonic")),
            doc = concat!("The page `docs/guide/", stringify!($name), ".md`: documentation of all features shows it here.")
        )]
        pub mod $name {}
    )+};
}

pages! {
    allow_list
    billing_days
    by_hand
    calendar
    capacity
    choosing
    configuration
    defaults
    development
    direct
    dynamodb
    failure
    from_aspnet
    from_axum_governor
    from_express
    from_sidekiq
    from_tower
    from_tower_governor
    gateways
    grpc
    hot_reload
    in_flight
    keys
    login
    look_ups
    machines
    mcp
    misconfigured
    monitoring
    overage
    overload
    own_stores
    partners
    plans
    pool
    postgres
    priorities
    proxies
    queue
    quotas
    real_costs
    rejections
    restarts
    shadow
    sharing
    shutdown
    slow_down
    start
    streams
    support
    tenants
    testing
    top_ups
    warnings
    which_limit
}
