if state then state = state .. tag end
-- The reply has all of the text.
old, tag = text, ''
