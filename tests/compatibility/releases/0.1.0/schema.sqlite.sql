CREATE TABLE alembic_version (
	version_num VARCHAR(32) NOT NULL, 
	CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
);
INSERT INTO "alembic_version" VALUES('0005');
CREATE TABLE audit (
	id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	at DOUBLE NOT NULL, 
	operator VARCHAR(128) NOT NULL, 
	what VARCHAR(64) NOT NULL, 
	merchant_id VARCHAR(128) NOT NULL, 
	order_id VARCHAR(128) NOT NULL, 
	details VARCHAR(512) NOT NULL
);
CREATE TABLE events (
	id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	event_id VARCHAR(36) NOT NULL, 
	position BIGINT, 
	type VARCHAR(16) NOT NULL, 
	merchant_id VARCHAR(128) NOT NULL, 
	order_id VARCHAR(128) NOT NULL, 
	occurred_at DOUBLE NOT NULL, 
	external_id VARCHAR(256), 
	reason_code VARCHAR(64), 
	reason_message TEXT, 
	attempts INTEGER NOT NULL, payload TEXT, body TEXT, helper VARCHAR(64), 
	UNIQUE (event_id), 
	UNIQUE (position)
);
CREATE TABLE merchants (
	id VARCHAR(128) NOT NULL, 
	provider VARCHAR(128), 
	adapter VARCHAR(64) NOT NULL, 
	base_url VARCHAR(2048) NOT NULL, 
	max_concurrency INTEGER, 
	request_timeout FLOAT, 
	auth JSON NOT NULL, 
	paused BOOLEAN NOT NULL, 
	updated_at DATETIME NOT NULL, pos JSON, 
	PRIMARY KEY (id)
);
CREATE TABLE orders (
	merchant_id VARCHAR(128) NOT NULL, 
	order_id VARCHAR(128) NOT NULL, 
	action VARCHAR(16) NOT NULL, 
	state VARCHAR(16) NOT NULL, 
	owner VARCHAR(64), 
	ticket BIGINT NOT NULL, 
	epoch BIGINT NOT NULL, 
	attempts INTEGER NOT NULL, 
	deaths INTEGER NOT NULL, 
	doubt_since DOUBLE, 
	pending BOOLEAN NOT NULL, 
	told VARCHAR(16), 
	reopened INTEGER NOT NULL, 
	external_id VARCHAR(256), 
	reason_code VARCHAR(64), 
	reason_message TEXT, 
	deliver_by DOUBLE, 
	created_at DOUBLE NOT NULL, 
	updated_at DOUBLE NOT NULL, 
	payload TEXT, 
	PRIMARY KEY (merchant_id, order_id, action)
);
CREATE TABLE pipeline (
	id INTEGER NOT NULL, 
	leader VARCHAR(64), 
	epoch BIGINT NOT NULL, 
	assigned BIGINT NOT NULL, 
	published BIGINT NOT NULL, 
	PRIMARY KEY (id)
);
CREATE TABLE workers (
	id VARCHAR(64) NOT NULL, 
	beat BIGINT NOT NULL, 
	lease DOUBLE NOT NULL, 
	beat_at DOUBLE NOT NULL, 
	PRIMARY KEY (id)
);
CREATE INDEX orders_by_state ON orders (state, updated_at);
CREATE INDEX orders_by_order ON orders (order_id);
CREATE INDEX events_without_position ON events (id) WHERE position is null;
CREATE INDEX ix_merchants_updated_at ON merchants (updated_at);
