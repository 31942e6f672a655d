-- Forgives what the key owes. Lots stay.
if owed > 0 then
  owed = 0
  call('HDEL', key, 'owed')
end
done = 1
