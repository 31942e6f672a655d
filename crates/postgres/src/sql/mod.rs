//! The statements: one text for each, with any driver.
//!
//! `plain.sql` charges if the row is plain: under the caller's quota, without a ban, a debt or an allowance, and not
//! written by a clock that was ahead. If it returns no row, `decide.sql` follows, which decides on any row. In the same
//! way, `joint.sql` on several keys follows if `pair.sql` returns no row.
//!
//! A statement is one of the files in this folder, with an algorithm's parts in it. Each is a separate transaction
//! under READ COMMITTED. It holds the lock on its row while it reads the clock, so of two changes to a row, the later
//! one has read the clock later. `plain.sql` reads the clock before it locks, and again if the row was changed while it
//! waited. If another statement only held the lock, or rolled back, the row is as it was when the clock was read, so
//! the decision is as of then.
//!
//! A part is written by its name in braces, `{covered}` (see [`fill`]), and a parameter by its name, `@limit` (see
//! [`Parameter`]).
//!
//! A line that begins with `>` is a step: it computes named columns from the previous steps' columns and from `r`, the
//! row as it is stored. Each step is a subquery around the previous one, which the planner keeps separate (`OFFSET 0`),
//! so that nothing is computed twice. Joins of single rows would take one and a half times the time.
//!
//! | column | content |
//! |---|---|
//! | `now` | the server's clock, in nanoseconds |
//! | `ahead` | by how far the clock that wrote the row was ahead of the present one, which was set back since |
//! | `stays` | nothing is charged, and the row stays under its quota: a ban, a debt or an allowance is in force |
//! | `corrected` | the number of the row, corrected if it is from the future |
//! | `rolled_…` | the state as it counts now, under the quota of the row |
//! | `debt`, `present_…` | the state as it counts now, under the quota of the question |
//! | `charged` | how many requests are charged |
//! | `number`, `previous`, `used` | the state after that |
//!
//! All arithmetic is in whole numbers. `bigint` divides without a remainder; `numeric` does so only by `div`.

mod pair;
#[cfg(test)]
mod tests;

use std::sync::{Arc, OnceLock};

/// The algorithm that a statement is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Bucket,
    FixedWindow,
    SlidingWindow,
    #[cfg(feature = "calendar")]
    CalendarWindow,
}

impl Kind {
    const ALL: &[Self] = &[
        Self::Bucket,
        Self::FixedWindow,
        Self::SlidingWindow,
        #[cfg(feature = "calendar")]
        Self::CalendarWindow,
    ];

    const COUNT: usize = Self::ALL.len();

    /// The algorithm's letter in its states' bytes.
    pub(crate) const fn letter(self) -> u8 {
        match self {
            Self::Bucket => b'b',
            Self::FixedWindow => b'f',
            Self::SlidingWindow => b's',
            #[cfg(feature = "calendar")]
            Self::CalendarWindow => b'c',
        }
    }
}

/// The server's time. Its microseconds are exact, because `extract` returns a `numeric`.
#[cfg(not(test))]
const NOW: &str = "(extract(epoch FROM clock_timestamp()) * 1000000)::int8 * 1000";

/// The test's time, if it has one.
#[cfg(test)]
const NOW: &str = "coalesce(@now, (extract(epoch FROM clock_timestamp()) * 1000000)::int8 * 1000)";

const CLOCK: &str = "SELECT {now} AS now OFFSET 0";

/// When the row was written, by the clock.
const CHANGED_NANOS: &str = "(extract(epoch FROM r.changed) * 1000000)::int8 * 1000";

/// A decision's time, from the row that it has written.
#[cfg(not(test))]
const DECIDED_AT: &str = CHANGED_NANOS;
#[cfg(test)]
const DECIDED_AT: &str = "coalesce(@now, {changed_nanos})";

const CHANGED: &str = "timestamptz 'epoch' + (now / 1000) * interval '1 microsecond'";

const AHEAD: &str = "greatest({changed_nanos} - now / 1000 * 1000, 0) AS ahead";

/// A plain charge's clock, which [`IS_AHEAD`] has read before. If it is set back in between, it stands still.
#[cfg(not(test))]
const PLAIN_NOW: &str = "(extract(epoch FROM greatest(clock_timestamp(), r.changed)) * 1000000)::int8 * 1000";
#[cfg(test)]
const PLAIN_NOW: &str = NOW;

/// Whether the row was written by a clock that was ahead. In a test, times have nanoseconds.
#[cfg(not(test))]
const IS_AHEAD: &str = "r.changed > clock_timestamp()";
#[cfg(test)]
const IS_AHEAD: &str = "{changed_nanos} > {now}";

/// The clock for two rows, like [`PLAIN_NOW`] for one.
#[cfg(not(test))]
const PAIR_NOW: &str = "(extract(epoch FROM greatest(clock_timestamp(), a.changed, b.changed)) * 1000000)::int8 * 1000";
#[cfg(test)]
const PAIR_NOW: &str = NOW;

/// Whether a row is plain.
const IS_PLAIN: &str = "r.quota_limit = @limit AND r.quota_burst = @burst AND r.quota_period = @period \
    AND coalesce(r.banned_until, r.owing_until, r.allowed_until) IS NULL AND NOT ({is_ahead})";

const IS_IN_FORCE: &str = "coalesce(greatest(r.banned_until, r.owing_until, r.allowed_until) - ahead > now, false)";

/// The columns that [`Row::read`](crate::kept::Row::read) reads.
const ROW: &str = "r.quota_limit, r.quota_burst, r.quota_period, r.number::text, r.previous, r.used, \
    r.banned_until::text, r.owing_until::text, r.allowed_until::text, r.reason";

/// The columns that [`Row::read_brief`](crate::kept::Row::read_brief) reads. Each returned column takes time, so the
/// last one is NULL in most cases: a row without a standing is under the caller's quota.
const BRIEF_ROW: &str = "r.number::text, r.previous, r.used, \
    CASE WHEN coalesce(r.banned_until, r.owing_until, r.allowed_until) IS NOT NULL THEN \
    concat(r.quota_limit, ',', r.quota_burst, ',', r.quota_period, ',', r.banned_until, ',', r.owing_until, ',', \
    r.allowed_until, ',', r.reason) END";

/// The latest time in a `bigint`, which is in the year 2262.
const LAST: &str = "9223372036854775807";

/// The ending of the record table's name.
pub(crate) const RECORDS: &str = "_records";

/// The time for which an expired row is kept. A client below its limit owes nothing soon after each of its requests. If
/// its row were deleted in between, each request would insert a row, which takes two statements and an entry of the
/// index.
const KEPT: &str = "interval '1 minute'";

const RECORD_NOW: &str = "timestamptz 'epoch' + ({now} / 1000) * interval '1 microsecond'";

const RECORD_EXPIRES: &str = "coalesce({changed} + @lifetime * interval '1 microsecond', timestamptz 'infinity')";

/// One algorithm's parts.
struct Parts {
    covered: &'static str,
    fresh_charged: &'static str,
    fresh_state: &'static str,
    corrected: &'static str,
    /// Steps.
    counted: &'static str,
    /// Steps like `counted`, for a plain row.
    plainly_counted: &'static str,
    /// Whether one request has room after these steps.
    fits: &'static str,
    /// The columns that a plain charge changes.
    columns: &'static str,
    charged: &'static str,
    state: &'static str,
    /// The nanosecond from which decisions are the same as without a state, under the caller's quota (also in a
    /// refund).
    ends: &'static str,
    same_units: &'static str,
    /// Steps.
    rolled: &'static str,
    refunded: &'static str,
}

/// A window number beyond the next one comes from a clock that was set back. A debt may reach further.
const CORRECTED_WINDOW: &str = "least(r.number, greatest(now, r.owing_until - ahead)::int8 / r.quota_period + 1)";

const BUCKET: Parts = Parts {
    covered: "true",
    fresh_charged: "least(@burst / @cost, @count)",
    fresh_state: "now::numeric * @limit + charged::numeric * @cost * @period AS number, \
                  0::int8 AS previous, 0::int8 AS used",
    corrected: "CASE WHEN ahead = 0 THEN r.number \
                ELSE greatest(r.number - ahead::numeric * r.quota_limit, 0) END",
    // As `Gcra::carried`, if the rate is another one.
    counted: "> greatest(corrected - now::numeric * r.quota_limit, 0) AS rolled_debt
              > CASE WHEN r.quota_limit = @limit AND r.quota_period = @period THEN rolled_debt \
              ELSE least(div(rolled_debt, r.quota_period) * @period \
              + div(mod(rolled_debt, r.quota_period) * @period + r.quota_period - 1, r.quota_period), \
              1329227995784915872903807060280344576) END AS debt",
    plainly_counted: "> greatest(r.number - now::numeric * @limit, 0) AS debt",
    fits: "debt <= (@burst - @cost)::numeric * @period",
    columns: "number",
    charged: "least(div(@burst::numeric * @period - debt, @cost::numeric * @period), @count)",
    state: "now::numeric * @limit + debt + charged::numeric * @cost * @period AS number, \
            0::int8 AS previous, 0::int8 AS used",
    ends: "div(number + @limit - 1, @limit)",
    same_units: "r.quota_limit = @limit AND r.quota_period = @period",
    rolled: "> least(greatest(@receipt - now::numeric * @limit, 0), @cost::numeric * @period) AS unpaid",
    refunded: "greatest(corrected - unpaid, 0) AS number, 0::int8 AS previous, 0::int8 AS used",
};

/// How many units of the previous window count, rounded up.
const WEIGHT: &str = "CASE WHEN present_previous = 0 THEN 0 \
    ELSE div(present_previous * (@period - greatest(now - present_number * @period, 0)) + @period - 1, @period) END AS weight";

const FIXED_WINDOW: Parts = Parts {
    covered: "true",
    fresh_charged: "least(@limit / @cost, @count)",
    fresh_state: "(now / @period)::numeric AS number, 0::int8 AS previous, charged * @cost AS used",
    corrected: CORRECTED_WINDOW,
    counted: "> CASE WHEN r.quota_period = @period THEN greatest(corrected, now / @period) \
              ELSE now / @period END AS present_number, \
              CASE WHEN (corrected + 1) * r.quota_period > now THEN r.used ELSE 0 END AS present_used",
    plainly_counted: "> greatest(least(r.number, now / @period + 1), now / @period) AS present_number, \
                      CASE WHEN r.number >= now / @period THEN r.used ELSE 0 END AS present_used",
    fits: "present_used <= @limit - @cost",
    columns: "number, used",
    charged: "least((@limit - present_used) / @cost, @count)",
    state: "present_number AS number, 0::int8 AS previous, present_used + charged * @cost AS used",
    ends: "(number + 1) * @period",
    same_units: "r.quota_period = @period",
    rolled: "",
    refunded: "corrected AS number, 0::int8 AS previous, \
               CASE WHEN corrected = @receipt THEN greatest(r.used - @cost, 0) ELSE r.used END AS used",
};

const SLIDING_WINDOW: Parts = Parts {
    covered: "true",
    fresh_charged: "least(@limit / @cost, @count)",
    fresh_state: "(now / @period)::numeric AS number, 0::int8 AS previous, charged * @cost AS used",
    corrected: CORRECTED_WINDOW,
    // As `SlidingWindow::inherit`, if the period is another one. The weight is the previous window's.
    counted: "{rolled}
              > CASE WHEN r.quota_period = @period THEN rolled_number ELSE now / @period END AS present_number, \
              CASE WHEN r.quota_period = @period THEN rolled_previous ELSE 0 END AS present_previous, \
              CASE WHEN r.quota_period = @period THEN rolled_used ELSE (rolled_used + div(rolled_previous * \
              (r.quota_period - least(greatest(now - rolled_number * r.quota_period, 0), r.quota_period)) \
              + r.quota_period - 1, r.quota_period))::int8 END AS present_used
              > {weight}",
    plainly_counted: "> now / @period AS window_of_clock
                      > greatest(least(r.number, window_of_clock + 1), window_of_clock) AS present_number, \
                      CASE WHEN r.number >= window_of_clock THEN r.previous \
                      WHEN r.number + 1 = window_of_clock THEN r.used ELSE 0 END AS present_previous, \
                      CASE WHEN r.number >= window_of_clock THEN r.used ELSE 0 END AS present_used
                      > {weight}",
    fits: "present_used + weight::int8 <= @limit - @cost",
    columns: "number, previous, used",
    charged: "least((@limit - present_used - weight::int8) / @cost, @count)",
    state: "present_number AS number, present_previous AS previous, present_used + charged * @cost AS used",
    ends: "(number + CASE WHEN used > 0 THEN 2 ELSE 1 END) * @period",
    same_units: "r.quota_period = @period",
    rolled: "> now / r.quota_period AS window_of_clock
             > greatest(corrected, window_of_clock) AS rolled_number, \
             CASE WHEN corrected >= window_of_clock THEN r.previous \
             WHEN corrected + 1 = window_of_clock THEN r.used ELSE 0 END AS rolled_previous, \
             CASE WHEN corrected >= window_of_clock THEN r.used ELSE 0 END AS rolled_used",
    refunded: "rolled_number AS number, \
               CASE WHEN rolled_number = @receipt + 1 THEN greatest(rolled_previous - @cost, 0) \
               ELSE rolled_previous END AS previous, \
               CASE WHEN rolled_number = @receipt THEN greatest(rolled_used - @cost, 0) \
               ELSE rolled_used END AS used",
};

#[cfg(feature = "calendar")]
const CALENDAR_WINDOW: Parts = Parts {
    covered: "now >= @since AND now < @second",
    fresh_charged: "least(@limit / @cost, @count)",
    fresh_state: "CASE WHEN now < @first THEN @first ELSE @second END::numeric AS number, \
                  0::int8 AS previous, charged * @cost AS used",
    corrected: "r.number",
    // Units from another calendar or from the future count in the present window, if they still count.
    counted: "> CASE WHEN now < @first THEN @first ELSE @second END::numeric AS present_number, \
              CASE WHEN now < corrected THEN r.used ELSE 0 END AS present_used",
    // Between two windows that the caller does not know, the row stays as it is.
    plainly_counted: "> CASE WHEN NOT ({covered}) THEN r.number WHEN now < @first THEN @first ELSE @second END AS present_number, \
                      CASE WHEN NOT ({covered}) OR now < r.number THEN r.used ELSE 0 END AS present_used",
    fits: "{covered} AND present_used <= @limit - @cost",
    columns: "number, used",
    charged: "least((@limit - present_used) / @cost, @count)",
    state: "present_number AS number, 0::int8 AS previous, present_used + charged * @cost AS used",
    ends: "number",
    same_units: "true",
    rolled: "",
    refunded: "corrected AS number, 0::int8 AS previous, \
               CASE WHEN corrected = @receipt THEN greatest(r.used - @cost, 0) ELSE r.used END AS used",
};

impl Parts {
    /// The state, without the columns that an algorithm does not have.
    fn plain_state(&self) -> String {
        ["previous", "used"]
            .iter()
            .fold(self.state.to_owned(), |state, it| state.replace(&format!(", 0::int8 AS {it}"), ""))
    }
}

impl Kind {
    const fn parts(self) -> &'static Parts {
        match self {
            Self::Bucket => &BUCKET,
            Self::FixedWindow => &FIXED_WINDOW,
            Self::SlidingWindow => &SLIDING_WINDOW,
            #[cfg(feature = "calendar")]
            Self::CalendarWindow => &CALENDAR_WINDOW,
        }
    }
}

/// The text that an error message quotes when a statement is carried out over another client's connection.
pub(crate) const OF_ANOTHER_CONNECTION: &str = "sluice: another connection";

/// Sets up a connection, and names it. The parameter is how many milliseconds a statement may take; a role that has
/// less keeps that. If the client has vanished without closing, its connection ends in half a minute.
pub(crate) const SET_UP: &str = "\
    SELECT set_config('sluice.session', concat(pg_backend_pid(), '.', \
      (extract(epoch FROM clock_timestamp()) * 1000000)::int8, ':'), false), \
      set_config('enable_seqscan', 'off', false), \
      set_config('statement_timeout', CASE WHEN role.millis > 0 AND role.millis < $1::int8 \
      THEN current_setting('statement_timeout') ELSE ($1::int8)::text END, false), \
      set_config('tcp_keepalives_idle', '10', false), set_config('tcp_keepalives_interval', '5', false), \
      set_config('tcp_keepalives_count', '4', false) \
    FROM (SELECT extract(epoch FROM current_setting('statement_timeout')::interval) * 1000 AS millis OFFSET 0) role";

/// True if this connection prepared this statement. The parameter is the connection's name with the statement's number.
/// If they differ, the statement fails, and changes nothing. `clock_timestamp()` keeps the planner from computing the
/// failure in advance.
fn is_of_this_connection(id: &str) -> String {
    format!(
        "CASE WHEN @session = '{id}' OR @session = current_setting('sluice.session', true) || '{id}' THEN true \
         ELSE concat('{OF_ANOTHER_CONNECTION} ', clock_timestamp())::bool END"
    )
}

/// Returns a number for a text (FNV-1a, by G. Fowler, L. C. Noll and K.-P. Vo).
fn number_of(text: &str) -> String {
    let hash = text
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3));
    format!("{hash:016x}")
}

/// A statement's placeholders.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Parameter {
    /// The connection's name and the statement's number. Always the first.
    Session,
    /// The time in nanoseconds; NULL for the server's clock.
    #[cfg(test)]
    Now,
    Key,
    /// The limiter's name.
    Limiter,
    /// How many requests are charged.
    Count,
    /// The cost per request.
    Cost,
    Limit,
    Burst,
    Period,
    /// The second key's parameters.
    SecondKey,
    SecondCost,
    SecondLimit,
    SecondBurst,
    SecondPeriod,
    /// Calendar: the caller knows that from this time on, windows end at the two others.
    Since,
    First,
    Second,
    /// The lengths of the first ban, the second one and so on; NULL if the key is not banned.
    Spans,
    /// How long an allowance lasts; NULL if the key is not allowed.
    Allowed,
    /// The operator's reason; NULL without one.
    Reason,
    /// How long bans are remembered, if they grow.
    Remembered,
    /// 1 if an operator changes a ban or an allowance, 0 if it is a penalty.
    ByHand,
    /// A state under the quota, and the nanosecond from which decisions are the same as without it.
    Number,
    Previous,
    Used,
    Ends,
    /// When the ban, the debt and the allowance end; NULL: never.
    BannedUntil,
    OwingUntil,
    AllowedUntil,
    /// The server's clock when the row was read, and the row's version.
    Written,
    Version,
    /// A record: its name, its present value and another one, both in hexadecimal digits, and for how many microseconds
    /// the new value counts; NULL: forever.
    Name,
    Old,
    New,
    Lifetime,
    /// Arrays for statements on several keys: one element per key for each parameter above, and the algorithm's letter.
    Keys,
    Limiters,
    Kinds,
    Costs,
    Limits,
    Bursts,
    Periods,
    Sinces,
    Firsts,
    Seconds,
    /// The sets of keys to choose from.
    Sets,
    /// The number in a receipt: when a bucket's charge is paid, a window's number, or a calendar window's end.
    Receipt,
}

impl Parameter {
    /// The name in a text, and the type.
    const ALL: &[(Self, &str, &str)] = &[
        (Self::Session, "session", "text"),
        #[cfg(test)]
        (Self::Now, "now", "int8"),
        (Self::Key, "key", "text::uuid"),
        (Self::Limiter, "limiter", "text"),
        (Self::Count, "count", "int8"),
        (Self::Cost, "cost", "int8"),
        (Self::Limit, "limit", "int8"),
        (Self::Burst, "burst", "int8"),
        (Self::Period, "period", "int8"),
        (Self::SecondKey, "key_2", "text::uuid"),
        (Self::SecondCost, "cost_2", "int8"),
        (Self::SecondLimit, "limit_2", "int8"),
        (Self::SecondBurst, "burst_2", "int8"),
        (Self::SecondPeriod, "period_2", "int8"),
        (Self::Since, "since", "int8"),
        (Self::First, "first", "int8"),
        (Self::Second, "second", "int8"),
        (Self::Receipt, "receipt", "text::numeric"),
        (Self::Spans, "spans", "text::int8[]"),
        (Self::Allowed, "allowed", "int8"),
        (Self::Reason, "reason", "text"),
        (Self::Remembered, "remembered", "int8"),
        (Self::ByHand, "by_hand", "int8"),
        (Self::Number, "number", "text::numeric"),
        (Self::Previous, "previous", "int8"),
        (Self::Used, "used", "int8"),
        (Self::Ends, "ends", "text::numeric"),
        (Self::BannedUntil, "banned", "text::numeric"),
        (Self::OwingUntil, "owing", "text::numeric"),
        (Self::AllowedUntil, "until", "text::numeric"),
        (Self::Written, "written", "int8"),
        (Self::Version, "version", "text"),
        (Self::Name, "name", "text"),
        (Self::Old, "old", "text"),
        (Self::New, "new", "text"),
        (Self::Lifetime, "lifetime", "int8"),
        (Self::Keys, "keys", "text::uuid[]"),
        (Self::Limiters, "limiters", "text::text[]"),
        (Self::Kinds, "kinds", "text::text[]"),
        (Self::Costs, "costs", "text::int8[]"),
        (Self::Limits, "limits", "text::int8[]"),
        (Self::Bursts, "bursts", "text::int8[]"),
        (Self::Periods, "periods", "text::int8[]"),
        (Self::Sinces, "sinces", "text::int8[]"),
        (Self::Firsts, "firsts", "text::int8[]"),
        (Self::Seconds, "seconds", "text::int8[]"),
        (Self::Sets, "sets", "text::int8[]"),
    ];
}

/// A text to prepare, and its parameters in the order of the placeholders.
#[derive(Debug)]
pub(crate) struct Statement {
    pub(crate) text: Arc<str>,
    /// Distinguishes it from all others.
    pub(crate) id: String,
    pub(crate) parameters: Vec<Parameter>,
    /// Whether it may wait for others with the same keys.
    pub(crate) locks_rows: bool,
}

impl Statement {
    /// Makes a statement from a file, with its parts.
    fn new(text: &str, table: &str, parts: &[(&str, &str)]) -> Self {
        let mut text = nested(&fill(&without_comments(text), table, parts));
        let id = number_of(&text);
        text = text.replace("{checked}", &is_of_this_connection(&id));
        let mut parameters = Vec::new();
        for (parameter, name, kind) in Parameter::ALL {
            // The name must end here, because there are `@limit` and `@limiter`.
            let name = format!("@{name}");
            let number = parameters.len() + 1;
            let mut filled = String::with_capacity(text.len());
            let mut rest = text.as_str();
            while let Some(at) = rest.find(&name) {
                let (before, after) = (&rest[..at], &rest[at + name.len()..]);
                filled.push_str(before);
                if after.starts_with(|next: char| next.is_ascii_alphabetic() || next == '_') {
                    filled.push_str(&name);
                } else {
                    filled.push_str(&format!("${number}::{kind}"));
                }
                rest = after;
            }
            filled.push_str(rest);
            if filled != text {
                parameters.push(*parameter);
                text = filled;
            }
        }
        Self { text: text.into(), id, parameters, locks_rows: true }
    }

    /// A statement that waits for no lock.
    fn without_locks(text: &str, table: &str) -> Self {
        Self { locks_rows: false, ..Self::new(text, table, &[]) }
    }
}

/// Leaves out the lines that the server does not need.
fn without_comments(text: &str) -> String {
    let lines: Vec<_> = text.lines().filter(|line| !line.trim().starts_with("--")).collect();
    lines.join("\n")
}

/// A table's name as an identifier, which cannot be an SQL keyword: `"limits"."user"`.
fn quoted(table: &str) -> String {
    format!("\"{}\"", table.replace('.', "\".\""))
}

/// The parts that any text may contain.
const COMMON: &[(&str, &str)] = &[
    ("now", NOW),
    ("plain_now", PLAIN_NOW),
    ("pair_now", PAIR_NOW),
    ("clock", CLOCK),
    ("ahead", AHEAD),
    ("is_ahead", IS_AHEAD),
    ("is_plain", IS_PLAIN),
    ("is_in_force", IS_IN_FORCE),
    ("row", ROW),
    ("brief_row", BRIEF_ROW),
    ("changed", CHANGED),
    ("changed_nanos", CHANGED_NANOS),
    ("decided_at", DECIDED_AT),
    ("record_expires", RECORD_EXPIRES),
    ("record_now", RECORD_NOW),
    ("kept", KEPT),
];

/// Replaces each name in braces by the part with this name: one of `parts`, or a common one. Panics if there is none.
fn fill(text: &str, table: &str, parts: &[(&str, &str)]) -> String {
    let (records, table) = (quoted(&format!("{table}{RECORDS}")), quoted(table));
    let tables = [("table", &*table), ("records", &*records)];
    filled(text, &[parts, COMMON, &tables].concat())
}

/// Replaces names by parts, in the parts, too. `{checked}` stays, because it will contain the whole text's number.
fn filled(text: &str, parts: &[(&str, &str)]) -> String {
    let mut whole = String::with_capacity(2 * text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('{') {
        let Some((name, after)) = after.split_once('}') else { panic!("a brace is not closed: {text}") };
        whole.push_str(before);
        match parts.iter().find(|(part, _)| *part == name) {
            Some((_, part)) => whole.push_str(&filled(part, parts)),
            None if name == "checked" => whole.push_str("{checked}"),
            None => panic!("there is no part `{name}`: {text}"),
        }
        rest = after;
    }
    whole + rest
}

/// Puts each run of steps into one subquery, `x`.
fn nested(text: &str) -> String {
    let mut nested = String::new();
    let mut steps: Option<String> = None;
    for line in text.lines() {
        if let Some(step) = line.trim_start().strip_prefix("> ") {
            steps = Some(match steps {
                None => format!("(SELECT {step} OFFSET 0) x"),
                Some(before) => format!("(SELECT *, {step} FROM {before} OFFSET 0) x"),
            });
        } else if !line.trim().is_empty() {
            nested.extend(steps.take().map(|steps| steps + "\n"));
            nested = nested + line + "\n";
        }
    }
    nested.extend(steps);
    nested
}

/// Returns an expression that rounds a nanosecond, a `numeric`, up to a `timestamptz`.
fn instant(nanos: &str) -> String {
    format!("timestamptz 'epoch' + div(least({nanos}, {LAST}) + 999, 1000)::int8 * interval '1 microsecond'")
}

/// Returns an expression for the time from which a row may be deleted, if its state ends at this nanosecond.
fn expires(ends: &str) -> String {
    instant(&format!("greatest({ends}, r.bans_until)"))
}

/// All statements on one table.
#[derive(Debug)]
pub(crate) struct Statements {
    plain: Vec<Statement>,
    decide: Vec<Statement>,
    refund: Vec<Statement>,
    stand: Vec<Statement>,
    pub(crate) read: Statement,
    pub(crate) reset: Statement,
    pub(crate) swap: Statement,
    pub(crate) insert: Statement,
    pub(crate) hand_read: Statement,
    pub(crate) hand_swap: Statement,
    pub(crate) hand_insert: Statement,
    pub(crate) sweep: Statement,
    pub(crate) joint_read: Statement,
    pub(crate) record_read: Statement,
    pub(crate) record_insert: Statement,
    pub(crate) record_replace: Statement,
    pub(crate) record_delete: Statement,
    pub(crate) record_sweep: Statement,
    table: Box<str>,
    /// By the algorithms of the first and the second key. Made when first asked for.
    pair: [[OnceLock<Statement>; Kind::COUNT]; Kind::COUNT],
    /// By the algorithms that the keys have, a bit for each. Made when first asked for.
    joint: [OnceLock<Statement>; 1 << Kind::COUNT],
}

impl Statements {
    pub(crate) fn new(table: &str) -> Self {
        // `least` and `greatest` ignore NULL.
        let latest = |ends: &str| instant(&format!("coalesce(greatest({ends}), 0)"));
        let standing_expires = latest("next_banned, next_owing, next_allowed, next_bans_until");
        let ends = [
            ("instant_of_swap", latest("@ends, @banned, @owing, @until, r.bans_until")),
            ("instant_of_insert", latest("@ends, @banned, @owing, @until")),
        ];
        let ends_of_state = ends.each_ref().map(|(name, part)| (*name, part.as_str()));
        let of_kind = |text: &str, kind: &Kind| {
            let parts = kind.parts();
            Statement::new(
                text,
                table,
                &[
                    ("covered", parts.covered),
                    ("fresh_charged", parts.fresh_charged),
                    ("fresh_state", parts.fresh_state),
                    ("fresh_expires", &instant(parts.ends)),
                    ("corrected", parts.corrected),
                    ("counted", parts.counted),
                    ("plainly_counted", parts.plainly_counted),
                    ("fits", parts.fits),
                    ("columns", parts.columns),
                    (
                        "returned_columns",
                        &format!("r.{}", parts.columns.replace(", ", ", r.").replace("number", "number::text")),
                    ),
                    ("plain_state", &parts.plain_state()),
                    ("weight", WEIGHT),
                    ("charged", parts.charged),
                    ("state", parts.state),
                    ("expires", &expires(parts.ends)),
                    ("same_units", parts.same_units),
                    ("rolled", parts.rolled),
                    ("refunded", parts.refunded),
                    ("standing_expires", &standing_expires),
                ],
            )
        };
        let each = |text: &str| Kind::ALL.iter().map(|kind| of_kind(text, kind)).collect();
        Self {
            plain: each(include_str!("plain.sql")),
            decide: each(include_str!("decide.sql")),
            refund: each(include_str!("refund.sql")),
            stand: each(include_str!("stand.sql")),
            read: Statement::without_locks(include_str!("read.sql"), table),
            reset: Statement::new(include_str!("reset.sql"), table, &[]),
            swap: Statement::new(include_str!("swap.sql"), table, &ends_of_state),
            insert: Statement::new(include_str!("insert.sql"), table, &ends_of_state),
            hand_read: Statement::without_locks(include_str!("hand_read.sql"), table),
            hand_swap: Statement::new(include_str!("hand_swap.sql"), table, &ends_of_state),
            hand_insert: Statement::new(include_str!("hand_insert.sql"), table, &ends_of_state),
            sweep: Statement::without_locks(include_str!("sweep.sql"), table),
            joint_read: Statement::without_locks(include_str!("joint_read.sql"), table),
            record_read: Statement::without_locks(include_str!("record_read.sql"), table),
            record_insert: Statement::new(include_str!("record_insert.sql"), table, &[]),
            record_replace: Statement::new(include_str!("record_replace.sql"), table, &[]),
            record_delete: Statement::new(include_str!("record_delete.sql"), table, &[]),
            record_sweep: Statement::without_locks(include_str!("record_sweep.sql"), table),
            table: table.into(),
            pair: [const { [const { OnceLock::new() }; Kind::COUNT] }; Kind::COUNT],
            joint: [const { OnceLock::new() }; 1 << Kind::COUNT],
        }
    }

    /// All of them.
    #[cfg(test)]
    fn all(&self) -> Vec<&Statement> {
        let mut all = vec![
            &self.read,
            &self.reset,
            &self.swap,
            &self.insert,
            &self.hand_read,
            &self.hand_swap,
            &self.hand_insert,
            &self.sweep,
            &self.joint_read,
            &self.record_read,
            &self.record_insert,
            &self.record_replace,
            &self.record_delete,
            &self.record_sweep,
        ];
        for kind in Kind::ALL {
            all.extend(self.charge(*kind));
            all.extend([self.stand(*kind), self.refund(*kind)]);
            all.extend(Kind::ALL.iter().filter_map(|second| self.pair([*kind, *second])));
        }
        all.extend(
            (1..1_usize << Kind::COUNT)
                .map(|bits| self.joint(Kind::ALL.iter().copied().filter(|kind| bits & 1 << *kind as usize != 0))),
        );
        all
    }

    /// The plain charge, and the statement that decides on any row.
    pub(crate) fn charge(&self, kind: Kind) -> [&Statement; 2] {
        [&self.plain[kind as usize], &self.decide[kind as usize]]
    }

    /// The plain charge to two keys, the lesser one first. `None` if these algorithms do not have one: a calendar
    /// window may turn out to be another one.
    pub(crate) fn pair(&self, kinds: [Kind; 2]) -> Option<&Statement> {
        #[cfg(feature = "calendar")]
        if kinds.contains(&Kind::CalendarWindow) {
            return None;
        }
        let [first, second] = kinds;
        Some(self.pair[first as usize][second as usize].get_or_init(|| pair::pair(kinds, &self.table)))
    }

    /// The statement on several keys with these algorithms.
    pub(crate) fn joint(&self, kinds: impl Iterator<Item = Kind>) -> &Statement {
        let bits = kinds.fold(0, |bits, kind| bits | 1_usize << kind as usize);
        self.joint[bits].get_or_init(|| {
            let kinds = Kind::ALL.iter().filter(|kind| bits & 1 << **kind as usize != 0);
            let branches: Vec<_> = kinds.map(|kind| joint_branch(*kind, &self.table)).collect();
            let branches = branches.join("\n  UNION ALL\n  ");
            Statement::new(include_str!("joint.sql"), &self.table, &[("branches", &branches)])
        })
    }

    pub(crate) fn stand(&self, kind: Kind) -> &Statement {
        &self.stand[kind as usize]
    }

    pub(crate) fn refund(&self, kind: Kind) -> &Statement {
        &self.refund[kind as usize]
    }
}

/// The part of a statement on several keys that decides on one algorithm's keys. A key's numbers are in a row, and not
/// in parameters.
fn joint_branch(kind: Kind, table: &str) -> String {
    let parts = kind.parts();
    let of_key = |part: &str| {
        let names = [
            ("@limit", "q.quota_limit"),
            ("@burst", "q.quota_burst"),
            ("@period", "q.quota_period"),
            ("@cost", "q.cost"),
            ("@count", "1::int8"),
            ("@since", "q.since"),
            ("@first", "q.first"),
            ("@second", "q.second"),
        ];
        names.iter().fold(part.to_owned(), |part, (name, column)| part.replace(name, column))
    };
    let letter = char::from(kind.letter()).to_string();
    fill(
        &without_comments(include_str!("joint_branch.sql")),
        table,
        &[
            ("kind", &letter),
            ("covered", &of_key(parts.covered)),
            ("corrected", &of_key(parts.corrected)),
            ("counted", &of_key(parts.counted)),
            ("weight", &of_key(WEIGHT)),
            ("charged", &of_key(parts.charged)),
            ("state", &of_key(parts.state)),
            ("rolled", &of_key(parts.rolled)),
            ("expires", &of_key(&expires(parts.ends))),
        ],
    )
}

/// A statement that fails unless both tables are there.
#[cfg(feature = "file")]
pub(crate) fn look(table: &str) -> String {
    fill("SELECT FROM {table}, {records} LIMIT 0", table, &[])
}

/// The statements that create the tables.
pub(crate) fn migrations(table: &str) -> [String; 2] {
    [include_str!("migration.sql"), include_str!("record_migration.sql")].map(|text| fill(text, table, &[]))
}

/// The statements that create the tables, as one statement, for processes that begin at the same time. `IF NOT EXISTS`
/// does not keep two transactions from creating the same table, and then one fails. So each first takes a lock, which
/// it holds until it ends.
pub(crate) fn migrate_in_turn(table: &str) -> String {
    let [states, records] = migrations(table);
    format!(
        "DO $sluice$ BEGIN PERFORM pg_advisory_xact_lock(hashtext('tower-sluice'));\n{states};\n{records};\nEND $sluice$"
    )
}
