"""A client at an address of its own of the loopback network."""

import http.client


class Answer:
    def __init__(self, response):
        self.status = response.status
        self.fields = {name.lower(): value for name, value in response.getheaders()}
        self.body = response.read()


class Client:
    """Each request is on a connection of its own, unless `keep` is set."""

    def __init__(self, port, address, keep=False):
        self.address = address
        self.keep = keep
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30, source_address=(address, 0))

    def get(self, path, fields=(), method="GET", body=None):
        """Sends a request with these fields, a list of pairs: names may repeat."""
        connection = self.connection
        try:
            connection.putrequest(method, path)
            # The app counts by it. No limit depends on it.
            connection.putheader("X-Client", self.address)
            for name, value in fields:
                connection.putheader(name, value)
            if body is not None:
                connection.putheader("Content-Length", str(len(body)))
            connection.endheaders(body)
            return Answer(connection.getresponse())
        finally:
            if not self.keep:
                connection.close()
