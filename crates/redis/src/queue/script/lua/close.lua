-- The reply has all of the text.
old = text
