if ends and receipt * 1000000 == ends and used > 0 then
  used, admitted = used - cost, 1
  if used > 0 then state, expires = format('-%d:%d', receipt, used), ends end
end
