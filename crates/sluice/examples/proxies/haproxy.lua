-- The action `lua.limit` of haproxy.cfg: asks the limiter about a request.

-- By the section `limiter` of haproxy.cfg.
local LIMITER = "http://127.0.0.1:8082/auth"

-- The client's fields that the limiter gets: those of your keys, such as x-api-key, each once. All of them would be too many:
-- with more than 96, the client of HAProxy 2.6 in Lua ends the process.
local KEYS = { "authorization", "cookie", "host", "origin", "user-agent", "x-api-key",
	"access-control-request-method", "access-control-request-headers" }

-- Fields of a rejection that belong to the limiter's connection, or that HAProxy writes itself.
local OWN = { ["connection"] = true, ["content-length"] = true, ["date"] = true, ["transfer-encoding"] = true }

core.register_action("limit", { "http-req" }, function(txn)
	local sent = txn.http:req_get_headers()
	local fields = {}
	for _, name in ipairs(KEYS) do
		if sent[name] then
			-- A client may send a field a hundred times.
			local value = sent[name][0]
			-- Cookies are one list, of which the app reads all.
			local another = 1
			while name == "cookie" and sent[name][another] do
				value = value .. "; " .. sent[name][another]
				another = another + 1
			end
			fields[name] = { [0] = value }
		end
	end
	-- These overwrite what a client has sent, so that nobody chooses another path, or another address.
	fields["x-forwarded-method"] = { [0] = txn.f:method() }
	local target = txn.f:pathq()
	-- `OPTIONS *` has no path.
	fields["x-forwarded-uri"] = { [0] = target ~= "" and target or "*" }
	fields["x-forwarded-host"] = fields["host"]
	fields["x-forwarded-for"] = { [0] = txn.f:src() }

	local answer = core.httpclient():get({ url = LIMITER, headers = fields })
	local status = answer and answer.status or 0
	if status >= 200 and status < 300 then
		for name, variable in pairs({ ["ratelimit"] = "txn.limit", ["ratelimit-policy"] = "txn.limit_policy" }) do
			if answer.headers[name] then
				txn:set_var(variable, answer.headers[name][0])
			end
		end
	elseif status >= 400 and status < 500 then
		local reply = txn:reply({ status = status, body = answer.body })
		for name, values in pairs(answer.headers) do
			for _, value in pairs(values) do
				if not OWN[name] then
					reply:add_header(name, value)
				end
			end
		end
		txn:done(reply)
	else
		-- A limiter that is down or slow lets requests pass. To reject them instead: txn:done(txn:reply({ status = 503 }))
		txn:Warning("the limiter does not answer: status " .. status)
	end
end)
