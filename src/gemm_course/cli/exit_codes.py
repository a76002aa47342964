"""Exit codes of subcommands, which scripts can rely on. The help of each says what FAILED means for it."""

OK, FAILED, USAGE, CANNOT, INTERRUPTED = 0, 1, 2, 3, 130


class Stop(Exception):
    """Ends a subcommand with an exit code and a message, which goes to stderr with the subcommand's name before it."""

    def __init__(self, code: int, text: object):
        super().__init__(str(text))
        self.code = code
