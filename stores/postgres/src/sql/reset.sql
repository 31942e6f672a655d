WITH gone AS (DELETE FROM {table} WHERE key = @key)
SELECT c.now FROM ({clock}) c
