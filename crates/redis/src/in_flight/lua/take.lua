-- Takes units, if they fit. Zero units only read.
if units > 0 and total + units <= ARGV[5] + 0 then
  own, admitted = own + units, 1
end
