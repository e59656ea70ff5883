"""Erlang that empties a virtual host for its next use.

To declare and delete Celery's delay queues takes half a second of CPU: these stay.
"""

#: Closes the connections to a virtual host, and deletes all that it has but Celery's delay queues and
#: exchanges, which it empties. It ends with `spare_<number>` set, to `ok` if that is what it did.
_EMPTY = """
spawn(fun() ->
  Of = {vhost},
  Delays = fun({{resource, _, _, <<"celery_delayed", _/binary>>}}) -> true; (_) -> false end,
  Given = fun({{resource, _, _, <<"amq.", _/binary>>}}) -> true;
             ({{resource, _, _, Name}}) -> Name == <<>> end,
  Others = fun() -> [Queue || Queue <- rabbit_amqqueue:list(Of),
    not (Delays(amqqueue:get_name(Queue)) andalso amqqueue:is_quorum(Queue))] end,
  Delete = fun Delete(Times) when Times > 0 ->
    case Others() of
      [] -> ok;
      Queues ->
        [catch rabbit_amqqueue:delete(Queue, false, false, <<"tests">>) || Queue <- Queues],
        timer:sleep(20),
        Delete(Times - 1)
    end end,
  Outcome = try
    [catch rabbit_networking:close_connection(element(6, Connection), "left by a test")
     || Connection <- rabbit_connection_tracking:list(Of)],
    Delete(100),
    [{{ok, _}} = rabbit_amqqueue:purge(Queue) || Queue <- rabbit_amqqueue:list(Of)],
    [ok = rabbit_exchange:delete(Name, false, <<"tests">>)
     || Exchange <- rabbit_exchange:list(Of), Name <- [element(2, Exchange)],
        not Delays(Name), not Given(Name)],
    ok
  catch _:_ -> failed end,
  application:set_env(rabbit, spare_{number}, Outcome)
end)
"""
#: Whether it is emptied, and whether it is there with no client (one that outlives its test must not
#: meet another test's messages) and with nothing that lost its leader, which is in no list.
_STATE = """
{{application:get_env(rabbit, spare_{number}),
  rabbit_vhost:exists({vhost}) andalso rabbit_connection_tracking:list({vhost}) == []
  andalso rabbit_amqqueue:list_down({vhost}) == []}}
"""
UNDECIDED, USABLE = "undefined", "{{ok,ok},true}"


def emptying(vhost: str, number: int) -> str:
    """The expression that starts it, of a virtual host's name in Erlang's words; each has a number."""
    return _one_line(_EMPTY.format(vhost=vhost, number=number))


def state(vhost: str, number: int) -> str:
    """The expression whose value is `USABLE`, or has `UNDECIDED` in it for as long as it is not done."""
    return _one_line(_STATE.format(vhost=vhost, number=number))


def _one_line(expression: str) -> str:
    return " ".join(expression.split())
