//! The examples in envoyproxy/ratelimit's README, version f2fb157, as test vectors. For an example on metrics, only its
//! limits are here.

/// A file, and requests to it.
pub(crate) struct Example {
    pub(crate) title: &'static str,
    pub(crate) file: &'static str,
    pub(crate) requests: &'static [Request],
}

/// A request's descriptors, such as `key=value, subkey=value`. Beside each is the rule that it selects, as `NAME
/// LIMIT/SECONDS for KEY`, or `nothing`.
pub(crate) type Request = &'static [(&'static str, &'static str)];

pub(crate) const EXAMPLES: [Example; 11] = [
    Example {
        title: "1: two values of a key",
        file: "
domain: mongo_cps
descriptors:
  - {key: database, value: users, rate_limit: {unit: second, requests_per_unit: 500}}
  - {key: database, value: default, rate_limit: {unit: second, requests_per_unit: 500}}
",
        requests: &[
            &[("database=users", "database:users 500/1 for all")],
            &[("database=default", "database:default 500/1 for all")],
            &[("database=other", "nothing")],
        ],
    },
    Example {
        title: "2: nested descriptors, and several descriptors of a request",
        file: "
domain: messaging
descriptors:
  - key: message_type
    value: marketing
    descriptors: [{key: to_number, rate_limit: {unit: day, requests_per_unit: 5}}]
  - {key: to_number, rate_limit: {unit: day, requests_per_unit: 100}}
",
        requests: &[
            &[
                (
                    "message_type=marketing, to_number=2061111111",
                    "message_type:marketing/to_number 5/86400 for 2061111111",
                ),
                ("to_number=2061111111", "to_number 100/86400 for 2061111111"),
            ],
            &[("to_number=2062222222", "to_number 100/86400 for 2062222222")],
            &[("message_type=marketing", "nothing")],
            &[("message_type=news, to_number=2061111111", "nothing")],
        ],
    },
    Example {
        title: "3: a value comes before its key alone",
        file: "
domain: edge_proxy_per_ip
descriptors:
  - {key: remote_address, rate_limit: {unit: second, requests_per_unit: 10}}
  - {key: remote_address, value: 50.0.0.5, rate_limit: {unit: second, requests_per_unit: 0}}
",
        requests: &[
            &[("remote_address=50.0.0.1", "remote_address 10/1 for 50.0.0.1")],
            &[("remote_address=50.0.0.5", "remote_address:50.0.0.5 0/1 for all")],
        ],
    },
    Example {
        title: "4: a limit counts at the depth of the whole descriptor",
        file: "
domain: example4
descriptors:
  - {key: key, value: value, rate_limit: {requests_per_unit: 300, unit: second}}
  - {key: deep, value: value, descriptors: [{key: subkey, rate_limit: {requests_per_unit: 300, unit: second}}]}
",
        requests: &[
            &[("key=value, subkey=subvalue", "nothing")],
            &[("key=value", "key:value 300/1 for all")],
            &[("deep=value, subkey=subvalue", "deep:value/subkey 300/1 for subvalue")],
            &[("deep=value", "nothing")],
        ],
    },
    Example {
        title: "5: no limit",
        file: "
domain: internal
descriptors:
  - {key: ldap, rate_limit: {unlimited: true}}
  - {key: azure, rate_limit: {unit: minute, requests_per_unit: 100}}
",
        requests: &[
            &[("ldap=a", "ldap unlimited for a"), ("azure=a", "azure 100/60 for a")],
            &[("other=a", "nothing")],
        ],
    },
    Example {
        title: "6: shadow mode",
        file: "
domain: example6
descriptors:
  - key: service
    descriptors:
      - {key: user, value: user-a, rate_limit: {requests_per_unit: 10, unit: second}, shadow_mode: true}
      - {key: user, value: user-b, rate_limit: {requests_per_unit: 20, unit: second}}
",
        requests: &[
            &[("service=auth-service, user=user-a", "service/user:user-a 10/1 shadow for auth-service")],
            &[("service=auth-service, user=user-b", "service/user:user-b 20/1 for auth-service")],
        ],
    },
    Example {
        title: "7: a limit replaces another",
        file: "
domain: example7
descriptors:
  - key: key_1
    value: value_1
    descriptors:
      - {key: user, value: bkthomps, rate_limit: {name: specific_limit, requests_per_unit: 5, unit: second}}
  - key: key_2
    value: value_2
    descriptors:
      - key: user
        value: bkthomps
        rate_limit: {replaces: [{name: specific_limit}], requests_per_unit: 10, unit: second}
",
        requests: &[
            &[("key_1=value_1, user=bkthomps", "key_1:value_1/user:bkthomps 5/1 for all")],
            &[("key_2=value_2, user=bkthomps", "key_2:value_2/user:bkthomps 10/1 for all")],
            &[
                ("key_1=value_1, user=bkthomps", "nothing"),
                ("key_2=value_2, user=bkthomps", "key_2:value_2/user:bkthomps 10/1 for all"),
            ],
        ],
    },
    Example {
        title: "8: values in metrics do not change limits",
        file: "
domain: example8
descriptors:
  - {key: key1, detailed_metric: true, rate_limit: {unit: minute, requests_per_unit: 10}}
  - {key: key1, value: value1, rate_limit: {unit: minute, requests_per_unit: 20}}
",
        requests: &[
            &[("key1=unspecified_value", "key1 10/60 for unspecified_value")],
            &[("key1=unspecified_value2", "key1 10/60 for unspecified_value2")],
            &[("key1=value1", "key1:value1 20/60 for all")],
        ],
    },
    Example {
        title: "9: patterns",
        file: "
domain: example9
descriptors:
  - {key: key1, value: value*, rate_limit: {unit: minute, requests_per_unit: 20}}
  - {key: path, value: /api/*/action, rate_limit: {unit: minute, requests_per_unit: 20}}
  - {key: route, value: /api/*/resource/*/action, rate_limit: {unit: minute, requests_per_unit: 20}}
",
        requests: &[
            &[("key1=value1", "key1:value* 20/60 for value1")],
            &[("key1=value2", "key1:value* 20/60 for value2")],
            &[("key1=valueXYZ", "key1:value* 20/60 for valueXYZ")],
            &[("key1=val", "nothing")],
            &[("path=/api/123/action", "path:/api/*/action 20/60 for /api/123/action")],
            &[("path=/api/user-id/action", "path:/api/*/action 20/60 for /api/user-id/action")],
            &[("path=/api/123/other", "nothing")],
            &[(
                "route=/api/v1/resource/123/action",
                "route:/api/*/resource/*/action 20/60 for /api/v1/resource/123/action",
            )],
        ],
    },
    Example {
        title: "10: more values in metrics",
        file: "
domain: example10
descriptors:
  - key: route
    value_to_metric: true
    descriptors:
      - key: http_method
        value_to_metric: true
        descriptors: [{key: subject_id, rate_limit: {unit: minute, requests_per_unit: 60}}]
  - key: user
    value_to_metric: true
    descriptors:
      - key: action
        value: read*
        value_to_metric: true
        descriptors: [{key: resource, rate_limit: {unit: minute, requests_per_unit: 100}}]
",
        requests: &[
            &[("route=api, http_method=GET, subject_id=123", "route/http_method/subject_id 60/60 for api|GET|123")],
            &[("route=web, http_method=POST, subject_id=456", "route/http_method/subject_id 60/60 for web|POST|456")],
            &[(
                "user=alice, action=readfile, resource=documents",
                "user/action:read*/resource 100/60 for alice|readfile|documents",
            )],
        ],
    },
    Example {
        title: "11: the values of a pattern share a budget",
        file: "
domain: example11
descriptors:
  - key: files
    value: files/*
    share_threshold: true
    rate_limit: {unit: hour, requests_per_unit: 10}
  - key: files_no_share
    value: files_no_share/*
    share_threshold: false
    rate_limit: {unit: hour, requests_per_unit: 10}
  - key: route
    value: api/*
    share_threshold: true
    value_to_metric: true
    descriptors: [{key: method, rate_limit: {unit: minute, requests_per_unit: 60}}]
",
        requests: &[
            &[("files=files/a.pdf", "files:files/* 10/3600 for all")],
            &[("files=files/b.csv", "files:files/* 10/3600 for all")],
            &[(
                "files_no_share=files_no_share/a.pdf",
                "files_no_share:files_no_share/* 10/3600 for files_no_share/a.pdf",
            )],
            &[(
                "files_no_share=files_no_share/b.csv",
                "files_no_share:files_no_share/* 10/3600 for files_no_share/b.csv",
            )],
            &[("route=api/v1, method=GET", "route:api/*/method 60/60 for GET")],
        ],
    },
];
