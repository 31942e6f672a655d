//! Scripts with one mistake each. The properties notice every mistake, so they would notice it in the scripts, too.

use super::{each_key, hostile, lives, once, own_quotas, standings, stored, traces};
use crate::store::redis::script::variant::{Changes, all_are_noticed};

macro_rules! block {
    ($name:literal) => {
        include_str!(concat!("../lua/", $name, ".lua"))
    };
}

#[test]
fn mistakes_in_buckets_are_noticed() {
    all_are_noticed(&[
        Changes {
            block: block!("bucket_read"),
            properties: &[
                stored::stored_buckets_agree_with_rust,
                hostile::a_foreign_value_is_an_error,
                traces::several_are_charged_all_or_none,
                own_quotas::a_corrected_state_keeps_its_quota,
                own_quotas::a_debt_beyond_the_bucket_survives_the_change_and_locks_no_client_out,
            ],
            changes: &[
                ("now + ARGV[at + 1]", "now + ARGV[at]"),
                ("if parts == '0' then parts = nil end", ""),
                ("ARGV[at + 2] + 0, ARGV[at + 3] + 0", "ARGV[at + 3] + 0, ARGV[at + 2] + 0"),
                ("string.find(old, '^-%d+$')", "string.find(old, '^-')"),
                ("string.match(old, '^-(%d+)%+(%d+)$')", "string.match(old, '^-(%d+)%+(%d+)')"),
                ("due >= 9007199254740992", "due > 9007199254740992"),
                ("rest >= 9007199254740992", "rest > 9007199254740992"),
                ("if not parts then rest = 0 elseif", "if parts and"),
                ("rest >= parts then rest = parts - 1", "rest > parts then rest = parts - 1"),
                ("rest >= parts then rest = parts - 1", "rest >= parts then rest = 0"),
                ("local most = full + beyond", "local most = full"),
                ("due < now then", "due <= now then"),
                ("    due, rest = now, 0\n", "    due = now\n"),
                ("due > most or", "due >= most or"),
                ("or due == most and rest > full_rest", ""),
                ("rest > full_rest then", "rest >= full_rest and rest ~= full_rest + 1 then"),
                ("due, rest = most, full_rest", "due, rest = most, 0"),
                ("if count ~= '0' then", "if true then"),
                ("if count ~= '0' then", "if false then"),
                ("(due + 1000) / 1000", "due / 1000"),
                ("(due + 1000) / 1000", "(due + 2000) / 1000"),
                ("rest) .. tag", "rest)"),
                ("more + 0 < 2251799813685248", "more + 0 < 2"),
                ("old, tag, beyond = bucket, '~' .. more .. tag, more", "old, beyond = bucket, more"),
            ],
        },
        Changes {
            block: block!("bucket_take"),
            properties: &[stored::stored_buckets_agree_with_rust, traces::token_buckets_agree],
            changes: &[
                ("count == '1' and not parts", "count == '1'"),
                ("if next <= full then", "if next < full then"),
                ("due, admitted = next, 1", "admitted = 1"),
                ("for _ = 1, count do", "for _ = 0, count do"),
                ("for _ = 1, count do", "for _ = 2, count do"),
                ("next_rest = rest + price_rest", "next_rest = rest"),
                ("next_rest >= parts then", "next_rest > parts then"),
                ("next + 1, next_rest - parts", "next, next_rest - parts"),
                ("next > full or", "next >= full or"),
                ("next == full and next_rest > full_rest", "next == full and next_rest >= full_rest"),
                ("or next == full and next_rest > full_rest", ""),
                ("next, next_rest, admitted + 1", "next, next_rest, 1"),
                ("next, next_rest, admitted + 1", "next, rest, admitted + 1"),
                ("rest == 0 then", "rest >= 0 then"),
                ("format('-%d', due), due\n", "format('-%d', due), now\n"),
                ("rest), due + 1", "rest), due - 999"),
                ("rest), due + 1", "rest), due"),
            ],
        },
        Changes {
            block: block!("bucket_refund"),
            properties: &[stored::stored_buckets_agree_with_rust, traces::token_buckets_agree],
            changes: &[
                ("receipt - now, receipt_rest", "receipt - due, receipt_rest"),
                ("owed > 0 or", "owed >= 0 or"),
                ("or owed == 0 and owed_rest > 0", ""),
                ("owed > price or", "owed >= price or"),
                ("or owed == price and owed_rest > price_rest", ""),
                ("owed, owed_rest = price, price_rest", "owed, owed_rest = price, 0"),
                ("due - owed, rest - owed_rest, 1", "due - owed, rest, 1"),
                ("if rest < 0 then", "if rest <= 0 then"),
                ("due - 1, rest + (parts or 1)", "due, rest + (parts or 1)"),
                ("rest + (parts or 1)", "rest + 1"),
                ("if due > now or", "if due >= now or"),
                ("or due == now and rest > 0", ""),
                ("rest), due + 1 end", "rest), due end"),
                ("if rest > 0 then state", "if rest > 1 then state"),
            ],
        },
    ]);
}

#[test]
fn mistakes_in_windows_are_noticed() {
    all_are_noticed(&[
        Changes {
            block: block!("fixed_window_read"),
            properties: &[
                stored::stored_fixed_windows_agree_with_rust,
                hostile::a_foreign_value_is_an_error,
                own_quotas::a_corrected_state_keeps_its_quota,
                own_quotas::windows_keep_their_used_units,
            ],
            changes: &[
                ("(now - now % period) / period", "(now - now % period) / period + 1"),
                ("'^-(%d+):(%d+)$'", "'^-(%d+):(%d+)'"),
                ("'^-(%d+):(%d+)$'", "'^-?(%d+):(%d+)$'"),
                ("stored >= 9007199254740992", "stored > 9007199254740992"),
                ("count_stored >= 1000000000000000", "count_stored > 1000000000000000"),
                ("if stored > window + 1 then", "if stored > window then"),
                ("if stored > window + 1 then", "if stored > window + 2 then"),
                ("    stored = window + 1\n", "    stored = window\n"),
                ("if count ~= '0' then", "if true then"),
                ("if count ~= '0' then", "if false then"),
                ("((stored + 1) * period + 999)", "(stored * period + 999)"),
                ("((stored + 1) * period + 999)", "((stored + 2) * period + 999)"),
                ("+ 999) / 1000", ") / 1000"),
                ("if stored >= window then", "if stored > window then"),
                ("count_stored) .. tag", "count_stored)"),
            ],
        },
        Changes {
            block: block!("fixed_window_take"),
            properties: &[stored::stored_fixed_windows_agree_with_rust],
            changes: &[
                ("for _ = 1, count do", "for _ = 0, count do"),
                ("used + cost > limit", "used + cost >= limit"),
                ("if used + cost > limit then break end", ""),
                ("used + cost, admitted + 1", "used, admitted + 1"),
                ("admitted + 1", "1"),
                ("(window + 1) * period", "window * period"),
                ("(window + 1) * period", "(window + 2) * period"),
            ],
        },
        Changes {
            block: block!("fixed_window_refund"),
            properties: &[stored::stored_fixed_windows_agree_with_rust],
            changes: &[
                ("receipt == window", "receipt <= window"),
                ("receipt == window", "receipt >= window"),
                ("receipt == window and used > 0", "receipt == window"),
                ("used - cost, 1", "0, 1"),
                ("if used > 0 then state", "if used >= 0 then state"),
                ("if used > 0 then state", "if used > 1 then state"),
                ("(window + 1) * period", "window * period"),
            ],
        },
        Changes {
            block: block!("sliding_window_read"),
            properties: &[
                stored::stored_sliding_windows_agree_with_rust,
                hostile::a_foreign_value_is_an_error,
                own_quotas::a_corrected_state_keeps_its_quota,
                own_quotas::windows_keep_their_used_units,
            ],
            changes: &[
                ("(now - now % period) / period", "(now - now % period) / period - 1"),
                ("'^-(%d+):(%d+):(%d+)$'", "'^-(%d+):(%d+):(%d+)'"),
                ("first >= 1000000000000000", "first > 1000000000000000"),
                ("second >= 1000000000000000", "second > 1000000000000000"),
                ("if stored > window + 1 then", "if stored > window then"),
                ("    stored = window + 1\n", "    stored = window + 2\n"),
                ("if count ~= '0' then", "if true then"),
                ("if count ~= '0' then", "if false then"),
                ("second > 0 and 2 or 1", "1"),
                ("second > 0 and 2 or 1", "2"),
                ("(ends + 999) / 1000", "ends / 1000"),
                ("stored, first, second) .. tag", "stored, second, first) .. tag"),
                ("second) .. tag", "second)"),
                ("if stored >= window then", "if stored > window then"),
                ("stored, first, second\n", "stored, second, first\n"),
                ("stored + 1 == window", "stored <= window"),
                ("    previous = second", "    previous = first"),
            ],
        },
        Changes {
            block: block!("sliding_window_take"),
            properties: &[
                stored::stored_sliding_windows_agree_with_rust,
                stored::weights_next_to_a_whole_number_are_rounded_up_exactly,
                traces::sliding_windows_agree,
            ],
            changes: &[
                ("(window + 1) * period - now", "window * period - now"),
                ("if left > period then left = period end", ""),
                ("previous * left\n", "previous * period\n"),
                ("product < 4503599627370496", "product < 1e30"),
                ("  if over > 0 then weight = weight + 1 end\nelse", "else"),
                ("  weight = weight - weight % 1\n", ""),
                ("previous % 33554432, left % 33554432", "left % 33554432, previous % 33554432"),
                ("local over = (previous - a) * (left - b) / 1125899906842624 - ", "local over = 0 - "),
                (" - (weight - c) * (period - d) / 1125899906842624", ""),
                ("(previous - a) * b + a * (left - b)", "(previous - a) * b"),
                ("(previous - a) * b + a * (left - b)", "a * (left - b)"),
                (" - (weight - c) * d", ""),
                (" - c * (period - d)) / 33554432", ") / 33554432"),
                ("33554432 + (a * b - c * d)", "33554432"),
                ("33554432 + (a * b - c * d)", "33554432 + a * b"),
                ("weight + (over + -over % period) / period", "weight"),
                ("weight + (over + -over % period) / period", "weight + (over > 0 and 1 or 0)"),
                ("weight + (over + -over % period) / period", "weight + (over - over % period) / period"),
                ("weight + (over + -over % period) / period", "weight + (over - over % period) / period + 1"),
                ("current + cost + weight > limit", "current + cost + weight >= limit"),
                ("current + cost + weight > limit", "current + cost > limit"),
                ("admitted + 1", "1"),
                ("window, previous, current), (window", "window, current, previous), (window"),
                ("(window + 2) * period", "(window + 1) * period"),
            ],
        },
        Changes {
            block: block!("sliding_window_refund"),
            properties: &[stored::stored_sliding_windows_agree_with_rust],
            changes: &[
                ("receipt == window and", "receipt >= window and"),
                ("window and current > 0", "window"),
                ("current - cost, 1", "current, 1"),
                ("receipt + 1 == window and", "receipt < window and"),
                ("window and previous > 0", "window"),
                ("previous - cost, 1", "previous, 1"),
                ("if previous < 0 then previous = 0 end", ""),
                ("if current > 0 then", "if current > 1 then"),
                ("window, previous, current), (window + 2)", "window, previous, current), (window + 1)"),
                ("elseif previous > 0 then\n  state", "elseif previous >= 0 then\n  state"),
                ("previous), (window + 1)", "previous), (window + 2)"),
            ],
        },
    ]);
}

#[test]
fn mistakes_in_windows_of_the_calendar_are_noticed() {
    all_are_noticed(&[
        Changes {
            block: block!("calendar_window_read"),
            properties: &[
                stored::stored_windows_of_the_calendar_agree_with_rust,
                hostile::a_foreign_value_is_an_error,
                hostile::an_end_that_is_too_late_is_an_error,
                lives::a_window_that_has_begun_continues_with_any_clock_of_the_caller,
                lives::no_window_of_the_calendar_begins_by_the_clock_of_a_caller,
                own_quotas::a_corrected_state_keeps_its_quota,
                own_quotas::windows_keep_their_used_units,
            ],
            changes: &[
                ("ARGV[at + 2] * 1000000, ARGV[at + 3]", "ARGV[at + 3] * 1000000, ARGV[at + 3]"),
                ("now < third then", "true then"),
                ("if first <= now and", "if"),
                ("now < second and second or third", "now <= second and second or third"),
                ("now < second and second or third", "second"),
                ("stored > 9007199254 ", "stored > 90071992540000 "),
                ("count_stored >= 1000000000000000", "count_stored > 1000000000000000"),
                ("if now < stored then", "if now <= stored then"),
                ("    used = count_stored\n", ""),
                ("if not ends then ends = stored end", ""),
                ("if ends ~= stored and count ~= '0' then", "if count ~= '0' then"),
                ("if ends ~= stored and count ~= '0' then", "if ends ~= stored then"),
                ("if ends ~= stored and count ~= '0' then", "if false then"),
                ("ends / 1000))", "stored / 1000))"),
                ("used) .. tag", "used)"),
            ],
        },
        Changes {
            block: block!("calendar_window_take"),
            properties: &[
                stored::stored_windows_of_the_calendar_agree_with_rust,
                lives::no_window_of_the_calendar_begins_by_the_clock_of_a_caller,
            ],
            changes: &[
                ("used + cost > limit", "used + cost >= limit"),
                ("for _ = 1, count do", "for _ = 1, 1 do"),
                ("used + cost, admitted + 1", "used + 1, admitted + 1"),
                ("used), ends end", "used), ends + 1000000 end"),
            ],
        },
        Changes {
            block: block!("calendar_window_refund"),
            properties: &[stored::stored_windows_of_the_calendar_agree_with_rust],
            changes: &[
                ("receipt * 1000000 == ends", "receipt * 1000000 <= ends"),
                ("ends and used > 0", "ends"),
                ("used - cost, 1", "used, 1"),
                ("if used > 0 then state", "if used >= 0 then state"),
                ("used), ends end", "used), now end"),
            ],
        },
    ]);
}

#[test]
fn mistakes_in_the_common_blocks_are_noticed() {
    all_are_noticed(&[
        Changes {
            block: block!("open"),
            properties: &[traces::fixed_windows_agree],
            changes: &[
                ("reply[1] * 1000000 + reply[2]", "reply[1] * 1000000"),
                ("ARGV[1], 2, 8, 12", "ARGV[1], 3, 8, 12"),
            ],
        },
        Changes {
            block: block!("each_key"),
            properties: &[
                each_key::a_key_that_cannot_be_read_concerns_no_other,
                each_key::each_key_is_charged_as_if_alone,
            ],
            changes: &[
                ("if keys > 1 then get", "if keys > 2 then get"),
                ("if keys > 1 then get = redis.pcall end", ""),
                ("for index = 1, keys do", "for index = 2, keys do"),
                ("KEYS[index]", "KEYS[1]"),
                ("old, problem = false, old.err", "old = false"),
            ],
        },
        Changes {
            block: block!("close"),
            properties: &[
                stored::stored_fixed_windows_agree_with_rust,
                hostile::a_foreign_value_is_an_error,
                own_quotas::a_corrected_state_keeps_its_quota,
                own_quotas::a_converted_state_lives_for_as_long_as_it_owes,
                each_key::a_key_that_cannot_be_read_concerns_no_other,
                each_key::each_key_is_charged_as_if_alone,
                own_quotas::buckets_keep_their_used_units,
            ],
            changes: &[
                ("if problem and keys == 1 then return redis.error_reply(problem) end", ""),
                ("state .. tag, 'PXAT'", "state, 'PXAT'"),
                ("(expires + 999) / 1000", "expires / 1000"),
                ("(expires + 999) / 1000", "(expires + 2999) / 1000"),
                ("admitted == 0 and old and string.find(old, ',', 1, true)", "false"),
                ("local outcome, held = '-', ''", "local outcome, held = 0, ''"),
                ("if not problem then\n    outcome", "if true then\n    outcome"),
                ("admitted == 1 and '1' or admitted", "'1'"),
                ("reply[2 * index + 1], reply[2 * index + 2]", "reply[2 * index + 2], reply[2 * index + 1]"),
                ("old and old .. tag or ''", "old or ''"),
            ],
        },
        Changes {
            block: block!("own_quota"),
            properties: &[
                own_quotas::a_converted_state_lives_for_as_long_as_it_owes,
                own_quotas::buckets_keep_their_used_units,
                own_quotas::windows_keep_their_used_units,
            ],
            changes: &[
                ("old and old ~= '' and old == ARGV[texts]", "old"),
                ("old == ARGV[texts] then", "old ~= ARGV[texts] then"),
                ("old = ARGV[texts + 1]", "old = ARGV[texts]"),
                ("if old == '' then", "if false then"),
                ("      old = false\n", ""),
                ("      call('DEL', key)\n", ""),
                ("call('SET', key, old, 'PXAT', ARGV[own + 3])", "call('SET', key, old)"),
                ("call('SET', key, old, 'PXAT', ARGV[own + 3])", ""),
                ("if ARGV[own] ~= '0' then", "if ARGV[own] == '0' then"),
                ("ARGV[own + 1] .. ':' .. ARGV[own + 2]", "ARGV[own + 2] .. ':' .. ARGV[own + 1]"),
                ("if string.sub(old, -#quota) ~= quota then break end", ""),
                ("string.sub(old, 1, -1 - #quota)", "string.sub(old, 1, -2 - #quota)"),
                ("    tag = quota\n", ""),
            ],
        },
        Changes {
            block: block!("refund_open"),
            properties: &[stored::stored_buckets_agree_with_rust, own_quotas::buckets_keep_their_used_units],
            changes: &[
                ("ARGV[7] + 0, ARGV[8] + 0", "ARGV[8] + 0, ARGV[7] + 0"),
                ("ARGV[1], 2, 1, 0, 9, 13", "ARGV[1], 2, 1, 0, 8, 13"),
                ("ARGV[1], 2, 1, 0, 9, 13", "ARGV[1], 3, 1, 0, 9, 13"),
                ("reply[1] * 1000000 + reply[2]", "reply[1] * 1000000"),
            ],
        },
        Changes {
            block: block!("refund_close"),
            properties: &[
                stored::stored_buckets_agree_with_rust,
                hostile::a_foreign_value_is_an_error,
                own_quotas::buckets_keep_their_used_units,
            ],
            changes: &[
                ("if problem then return redis.error_reply(problem) end", ""),
                ("if state and admitted > 0 then", "if false then"),
                ("elseif admitted > 0 then\n  call('DEL', key)", ""),
                ("elseif admitted > 0 then", "else"),
                ("state .. tag, 'PXAT'", "state, 'PXAT'"),
                ("(expires + 999) / 1000", "expires / 1000"),
            ],
        },
        Changes {
            block: block!("several_open"),
            properties: &[
                traces::several_are_charged_all_or_none,
                each_key::each_request_for_several_keys_is_decided_as_if_alone,
                each_key::a_request_for_a_key_that_cannot_be_read_concerns_no_other,
            ],
            changes: &[
                ("6 * index - 3", "6 * index - 2"),
                ("ARGV[at - 1]", "ARGV[2]"),
                ("get('GET', key)", "get('GET', KEYS[1])"),
                ("for index = 1, size do", "for index = 2, size do"),
                ("  local all = 1\n", "  local all = 0\n"),
                ("KEYS[before + index]", "KEYS[index]"),
                ("#KEYS - 1, size do", "0 do"),
                ("if #KEYS > size then get = redis.pcall end", ""),
                ("old, problem = false, old.err", "old = false"),
            ],
        },
        Changes {
            block: block!("several_close"),
            properties: &[
                traces::several_are_charged_all_or_none,
                lives::one_unreadable_key_of_several_stops_the_call,
                each_key::each_request_for_several_keys_is_decided_as_if_alone,
                each_key::a_request_for_a_key_that_cannot_be_read_concerns_no_other,
            ],
            changes: &[
                ("elseif admitted == 0 and all == 1 then\n      all = 0\n", ""),
                ("elseif admitted == 0 and all == 1 then", "elseif admitted == 0 then"),
                ("(admitted == 0 or algorithm == '0') and old", "admitted == 0 and old"),
                ("(admitted == 0 or algorithm == '0') and old", "algorithm == '0' and old"),
                ("      all, reply[place + index] = '-', ''\n", "      all = '-'\n"),
                ("      all, reply[place + index] = '-', ''\n", "      all = 0\n"),
                ("reply[place + index] = state and", "reply[place + index - 1] = state and"),
                ("  if all == 1 then\n    for", "  if all ~= 2 then\n    for"),
                ("place + size + 1", "place + size"),
                ("(ends[index] + 999) / 1000", "ends[index] / 1000"),
                ("(ends[index] + 999) / 1000", "(ends[1] + 999) / 1000"),
                ("KEYS[before + index], states[index], 'PXAT'", "KEYS[index], states[index], 'PXAT'"),
                ("if get == call then return redis.error_reply(problem) end", ""),
                ("reply[place], place = all,", "reply[place], place = 1,"),
            ],
        },
        Changes {
            block: block!("reset"),
            properties: &[
                lives::a_key_that_is_reset_is_as_if_it_had_never_been,
                standings::bans_grow_by_the_number_of_bans_that_are_not_forgotten,
            ],
            changes: &[
                ("call('DEL', unpack(KEYS))\n", ""),
                ("',0'", "',1'"),
                ("unpack(KEYS)", "KEYS[1]"),
                ("#KEYS", "1"),
                ("time[1] .. ',' .. time[2]", "time[2] .. ',' .. time[1]"),
            ],
        },
    ]);
}

#[test]
fn mistakes_about_standings_are_noticed() {
    all_are_noticed(&[
        Changes {
            block: block!("standing"),
            properties: &[
                hostile::a_foreign_value_is_an_error,
                each_key::a_key_that_cannot_be_read_concerns_no_other,
                standings::bans_and_debts_agree_with_a_plain_map,
            ],
            changes: &[
                ("if problem then break end\n", ""),
                ("old and string.byte(old) == 33", "false"),
                ("[^!:]*!(.*)$'", "[^!:]*!(.+)$'"),
                ("[^!:]*!(.*)$'", "[^!]*!(.*)$'"),
                (
                    "banned, owing, allowed = tonumber(banned), tonumber(owing), tonumber(allowed)",
                    "owing, banned, allowed = tonumber(banned), tonumber(owing), tonumber(allowed)",
                ),
                (
                    "banned, owing, allowed = tonumber(banned), tonumber(owing), tonumber(allowed)",
                    "allowed, owing, banned = tonumber(banned), tonumber(owing), tonumber(allowed)",
                ),
                ("banned >= 9007199254740992 or", ""),
                ("or owing >= 9007199254740992", ""),
                ("or allowed >= 9007199254740992", ""),
                ("if allowed > now then", "if allowed >= now then"),
                ("if allowed > now then", "if false then"),
                ("    if size then algorithm, admitted = '0', 1 end\n", ""),
                ("if size then algorithm", "if true then algorithm"),
                ("if banned > now or", "if banned >= now or"),
                ("if banned > now or", "if"),
                ("owing > now and", "owing >= now and"),
                ("owing > now and algorithm ~= '0'", "owing > now"),
                ("owing > now and algorithm ~= '0'", "false"),
                ("if owing <= now then old", "if owing > now then old"),
                ("rest ~= '' and rest", "rest"),
            ],
        },
        Changes {
            block: block!("ban"),
            properties: &[
                standings::a_foreign_value_is_never_banned_or_replaced,
                standings::a_ban_forgets_no_state,
                standings::a_foreign_number_of_bans_is_never_replaced,
                standings::bans_grow_by_the_number_of_bans_that_are_not_forgotten,
                standings::bans_and_debts_agree_with_a_plain_map,
            ],
            changes: &[
                ("0, 0, 0, old or ''", "0, 0, 0, ''"),
                ("string.byte(old) == 33", "false"),
                (
                    "banned, owing, allowed = tonumber(banned), tonumber(owing), tonumber(allowed)",
                    "owing, banned, allowed = tonumber(banned), tonumber(owing), tonumber(allowed)",
                ),
                ("or banned >= 9007199254740992", ""),
                ("or owing >= 9007199254740992", ""),
                ("or allowed >= 9007199254740992", ""),
                ("or old and not string.find(old, '^[-!]')", ""),
                ("if banned <= now and allowed <= now then", "if true then"),
                ("if banned <= now and allowed <= now then", "if allowed <= now then"),
                ("if banned <= now and allowed <= now then", "if banned <= now then"),
                ("if banned <= now and allowed <= now then", "if banned < 0 then"),
                ("  if owing <= now then owing = 0 end\n", ""),
                ("  banned = now + span\n", "  banned = now\n"),
                ("or repeated ~= '' and not times", ""),
                ("tonumber(remembered) > now and", ""),
                ("tonumber(remembered) > now", "tonumber(remembered) >= now"),
                ("for _ = 1, times do", "for _ = 0, times do"),
                ("math.min(span * ARGV[2], tonumber(ARGV[3]))", "span * ARGV[2]"),
                ("now + span + ARGV[4]", "now + ARGV[4]"),
                ("times + 1", "times"),
                ("(remembered + 999) / 1000", "remembered / 2000"),
                ("math.max((banned + 999) / 1000, now / 1000 + left + 1)", "now / 1000 + left + 1"),
                ("math.max((banned + 999) / 1000, now / 1000 + left + 1)", "(banned + 999) / 1000"),
            ],
        },
        Changes {
            block: block!("swap"),
            properties: &[standings::bans_and_debts_agree_with_a_plain_map],
            changes: &[
                ("if old == ARGV[2] then", "if ARGV[2] then"),
                ("if old == ARGV[2] then", "if false then"),
                ("  swapped = 1\n", ""),
                ("ARGV[3], 'PXAT', ARGV[1]", "ARGV[3], 'PXAT', ARGV[1] - 100000"),
            ],
        },
        Changes {
            block: block!("once_open"),
            properties: &[standings::bans_and_debts_agree_with_a_plain_map],
            changes: &[("if banned > now then free = 0 end", ""), ("if banned > now then", "if banned > 0 then")],
        },
    ]);
}

#[test]
fn mistakes_about_free_retries_are_noticed() {
    all_are_noticed(&[
        Changes {
            block: block!("once_open"),
            properties: &[
                once::foreign_records_budgets_and_states_are_errors,
                once::a_cost_above_the_limit_charges_only_the_budget,
                once::free_retries_agree_with_a_plain_map,
            ],
            changes: &[
                ("call('GET', KEYS[3])", "call('GET', KEYS[2])"),
                ("'^-(%d+)$'", "'^-(%d+)'"),
                ("free >= 4294967296", "free > 4294967296"),
                ("if free > 0 then olds[2]", "if free > 1 then olds[2]"),
                ("free > 0 and 2 or 1", "1"),
                ("free > 0 and 2 or 1", "2"),
                ("free > 0 and 2 or 1, 1, -1", "free > 0 and 2 or 1, free > 0 and 2 or 1, -1"),
                ("6 * index - 3", "3"),
                ("ARGV[at - 1]", "ARGV[1]"),
            ],
        },
        Changes {
            block: block!("once_close"),
            properties: &[
                once::foreign_records_budgets_and_states_are_errors,
                once::a_record_lives_from_the_end_of_the_first_response_after_any_use,
                once::states_and_budgets_live_for_as_long_as_they_owe,
                once::free_retries_agree_with_a_plain_map,
            ],
            changes: &[
                ("if problem then return redis.error_reply(problem) end", ""),
                ("(expires + 999) / 1000", "expires / 1000"),
                ("(expires + 999) / 1000", "(expires + 2999) / 1000"),
                ("    charged = index\n", "    charged = 1\n"),
                ("    break\n  end\nend", "  end\nend"),
                ("if charged == 2 then call", "if charged >= 1 then call"),
                ("free - 1)", "free)"),
                (", 'KEEPTTL'", ""),
                ("olds[1], olds[2], record", "olds[2], olds[1], record"),
                ("if charged == 2 then reply[7]", "if charged == 1 then reply[7]"),
            ],
        },
        Changes {
            block: block!("begin_record"),
            properties: &[once::a_record_lives_from_the_end_of_the_first_response_after_any_use],
            changes: &[(", 'NX'", ""), ("'PX'", "'EX'"), ("'-' .. ARGV[1]", "'-' .. ARGV[2]")],
        },
        Changes {
            block: block!("raise_record"),
            properties: &[
                once::a_record_lives_from_the_end_of_the_first_response_after_any_use,
                once::foreign_records_budgets_and_states_are_errors,
            ],
            changes: &[
                ("free < ARGV[1] + 0", "free <= ARGV[1] + 0"),
                ("if free and free", "if free"),
                ("free + 1", "free"),
                (", 'KEEPTTL'", ""),
            ],
        },
    ]);
}
