"""A clock for the benchmark's tests: nothing is timed, every function is run once."""


class Clock:
    """Runs functions, and says that they took as long as `us` has it."""

    def __init__(self, us=None, host=5.0):
        self.us, self.host, self.calls = us or {}, host, []

    def graph(self, function, pool=None):
        self.calls.append("graph" if pool is None else f"graph in {pool}")
        function()
        return function

    def interleaved_us(self, functions, repeats):
        self.calls.append((sorted(functions), repeats))
        for function in functions.values():
            function()
        return {name: [self.us.get(name, 10.0)] * repeats for name in functions}

    def host_us(self, function):
        function()
        return self.host

    def pool(self):
        return "a pool"

    def forget(self, call):
        self.calls.append("forget")

    def peak_bytes(self, function):
        function()
        return 3 * 2**20

    def copy_tb_s(self):
        return 4.0

    def settle(self):
        pass

    def free(self):
        self.calls.append("free")
