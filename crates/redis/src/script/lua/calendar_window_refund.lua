-- A charge of another calendar than the state's stays, and the state stays in its window: the key may have another
-- calendar than when the request came.
if not is_moved and receipt * 1000000 == ends and used > 0 then
  used, admitted = used - cost, 1
  if used > 0 then state, expires = format('-%d:%d', receipt, used), ends end
end
