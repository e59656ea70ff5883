"""The tables, for SQLite and PostgreSQL alike. A change here needs a migration beside it."""

from sqlalchemy import JSON, Boolean, Column, DateTime, Float, Integer, MetaData, String, Table

metadata = MetaData()

merchants = Table(
    "merchants",
    metadata,
    Column("id", String(128), primary_key=True),
    Column("provider", String(128)),
    Column("adapter", String(64), nullable=False),
    Column("base_url", String(2048), nullable=False),
    Column("max_concurrency", Integer),
    Column("request_timeout", Float),
    Column("auth", JSON, nullable=False),
    Column("pos", JSON),
    Column("paused", Boolean, nullable=False),
    Column("updated_at", DateTime(timezone=True), nullable=False),
)
