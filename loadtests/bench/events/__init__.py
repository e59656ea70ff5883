"""How soon the backend hears of outcomes, one or a hundred thousand; beside naive pipelines.

__main__ plays  ->  measure  ->  live (a worker under load, a bulk of rows in its table)
                             ->  helped (hydration made expensive, with and without helpers)
stream notes what a consumer receives; bulk writes rows; relaying is a pipeline by itself.
"""
