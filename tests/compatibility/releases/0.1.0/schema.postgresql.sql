CREATE TABLE public.alembic_version (
    version_num character varying(32) NOT NULL
);
CREATE TABLE public.audit (
    id bigint NOT NULL,
    at double precision NOT NULL,
    operator character varying(128) NOT NULL,
    what character varying(64) NOT NULL,
    merchant_id character varying(128) NOT NULL,
    order_id character varying(128) NOT NULL,
    details character varying(512) NOT NULL
);
CREATE SEQUENCE public.audit_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE public.audit_id_seq OWNED BY public.audit.id;
CREATE TABLE public.events (
    id bigint NOT NULL,
    event_id character varying(36) NOT NULL,
    "position" bigint,
    type character varying(16) NOT NULL,
    merchant_id character varying(128) NOT NULL,
    order_id character varying(128) NOT NULL,
    occurred_at double precision NOT NULL,
    external_id character varying(256),
    reason_code character varying(64),
    reason_message text,
    attempts integer NOT NULL,
    payload text,
    body text,
    helper character varying(64)
);
CREATE SEQUENCE public.events_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1;
ALTER SEQUENCE public.events_id_seq OWNED BY public.events.id;
CREATE TABLE public.merchants (
    id character varying(128) NOT NULL,
    provider character varying(128),
    adapter character varying(64) NOT NULL,
    base_url character varying(2048) NOT NULL,
    max_concurrency integer,
    request_timeout double precision,
    auth json NOT NULL,
    paused boolean NOT NULL,
    updated_at timestamp with time zone NOT NULL,
    pos json
);
CREATE TABLE public.orders (
    merchant_id character varying(128) NOT NULL,
    order_id character varying(128) NOT NULL,
    action character varying(16) NOT NULL,
    state character varying(16) NOT NULL,
    owner character varying(64),
    ticket bigint NOT NULL,
    epoch bigint NOT NULL,
    attempts integer NOT NULL,
    deaths integer NOT NULL,
    doubt_since double precision,
    pending boolean NOT NULL,
    told character varying(16),
    reopened integer NOT NULL,
    external_id character varying(256),
    reason_code character varying(64),
    reason_message text,
    deliver_by double precision,
    created_at double precision NOT NULL,
    updated_at double precision NOT NULL,
    payload text
);
CREATE TABLE public.pipeline (
    id integer NOT NULL,
    leader character varying(64),
    epoch bigint NOT NULL,
    assigned bigint NOT NULL,
    published bigint NOT NULL
);
CREATE TABLE public.workers (
    id character varying(64) NOT NULL,
    beat bigint NOT NULL,
    lease double precision NOT NULL,
    beat_at double precision NOT NULL
);
ALTER TABLE ONLY public.audit ALTER COLUMN id SET DEFAULT nextval('public.audit_id_seq'::regclass);
ALTER TABLE ONLY public.events ALTER COLUMN id SET DEFAULT nextval('public.events_id_seq'::regclass);
INSERT INTO public.alembic_version VALUES ('0005');
ALTER TABLE ONLY public.alembic_version
    ADD CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num);
ALTER TABLE ONLY public.audit
    ADD CONSTRAINT audit_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.events
    ADD CONSTRAINT events_event_id_key UNIQUE (event_id);
ALTER TABLE ONLY public.events
    ADD CONSTRAINT events_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.events
    ADD CONSTRAINT events_position_key UNIQUE ("position");
ALTER TABLE ONLY public.merchants
    ADD CONSTRAINT merchants_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.orders
    ADD CONSTRAINT orders_pkey PRIMARY KEY (merchant_id, order_id, action);
ALTER TABLE ONLY public.pipeline
    ADD CONSTRAINT pipeline_pkey PRIMARY KEY (id);
ALTER TABLE ONLY public.workers
    ADD CONSTRAINT workers_pkey PRIMARY KEY (id);
CREATE INDEX events_without_position ON public.events USING btree (id) WHERE ("position" IS NULL);
CREATE INDEX ix_merchants_updated_at ON public.merchants USING btree (updated_at);
CREATE INDEX orders_by_order ON public.orders USING btree (order_id);
CREATE INDEX orders_by_state ON public.orders USING btree (state, updated_at);
