WITH gone AS (DELETE FROM {table} WHERE key = @key AND (SELECT {checked}))
SELECT c.now FROM ({clock}) c
