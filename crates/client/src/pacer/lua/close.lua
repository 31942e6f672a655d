-- A state is kept for a minute longer than it is needed: without it, the next call has to go alone.
if is_changed then
  local needed = max(paused, last, tat, ends, probe) - now
  local state = format('-%d %d %d %d %d %d %d %d %d %d %d %d %d %d %d %d %d %d', paused, number, last, tat, by, left, ends,
    since, spacing, probe, free, gap, cut, counted, passed, doublings, window, room)
  call('SET', key, state, 'PX', format('%d', ceil(max(0, needed) / 1000) + 60000))
end
return reply[1] .. ',' .. reply[2] .. ',' .. departs .. ',' .. format('%d %d', which, at)
