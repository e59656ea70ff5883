"""What Toast's orders definition (2.9.0) says that a request's objects may have.

Of the definition: names, types, enumerations, lengths, what is required, what is response only, and what
is of marketplace facilitators alone. Judgement: a field that is unknown, response only, or of such
clients and of loyalty programs, is refused. ``entityType``, response only by the definition, is taken,
since its own requests have it; a reference needs none, as in "Creating orders". A ``guid`` is
taken in references and of card payments, where a client can know one.
"""

from testkit.vendors.fields import Field, Table, Tables, choice, integer, many, text

GUID = r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"
#: Toast's form of a time, as in the definition's examples: milliseconds, a zone without colon.
_DATE = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}[+-]\d{4}"
_DATES = "openedDate paidDate closedDate modifiedDate createdDate deletedDate"


def _fields(type_: str, names: str) -> Table:
    """Optional fields of one type."""
    return {name: Field(type_) for name in names.split()}


def _dates(names: str) -> Table:
    return {name: text(pattern=_DATE) for name in names.split()}


def _required(names: str) -> Table:
    """Texts."""
    return {name: text(required=True) for name in names.split()}


def _refused(names: str) -> Table:
    """Response only, or of other clients."""
    return {name: Field("any", read_only=True) for name in names.split()}


#: The client names an Order, a Check, a Selection; Toast numbers them.
_OWN: Table = {"entityType": text(), "externalId": text(), **_refused("guid")}
_REFERENCE: Table = {"guid": text(required=True, pattern=GUID), "entityType": text()}
_SELECTION: Table = {
    **_OWN,
    **_fields("ConfigReference", "itemGroup optionGroup preModifier"),
    "modifiers": many("Modifier"),
    "selectionType": choice(
        "NONE OPEN_ITEM SPECIAL_REQUEST PORTION HOUSE_ACCOUNT_PAY_BALANCE TOAST_CARD_SELL"
        " TOAST_CARD_RELOAD"
    ),
    "unitOfMeasure": choice("NONE LB OZ KG G GAL L ML FL_OZ M CM FT IN YD"),
    "taxInclusion": choice("INCLUDED NOT_INCLUDED INHERITED"),
    "optionGroupPricingMode": choice(
        "INCLUDED FIXED_PRICE ADJUSTS_PRICE REPLACES_PRICE LOCATION_SPECIFIC_PRICE"
    ),
    "deferred": Field("boolean"),
    **_fields("number", "openPriceAmount receiptLinePrice"),
    **_dates("createdDate modifiedDate"),
    **_refused("seatNumber salesCategory appliedDiscounts preDiscountPrice price tax plu voided"),
    **_refused("voidDate voidBusinessDate voidReason premodifierPlu diningOption appliedTaxes"),
    **_refused("fulfillmentStatus fulfillment splitOrigin refundDetails externalPriceAmount"),
}

TABLES: Tables = {
    "ToastReference": _REFERENCE,
    "ExternalReference": {**_REFERENCE, "externalId": text()},
    "ConfigReference": {**_REFERENCE, **_fields("text", "externalId multiLocationId")},
    "Device": {"id": text()},
    "Order": {
        **_OWN,
        "diningOption": Field("ExternalReference", required=True),
        "checks": many("Check", required=True, fewest=1),
        **_dates(f"promisedDate {_DATES}"),
        **_fields("ExternalReference", "table revenueCenter server"),
        **_fields("Device", "createdDevice lastModifiedDevice"),
        "deliveryInfo": Field("DeliveryInfo"),
        "curbsidePickupInfo": Field("CurbsidePickupInfo"),
        "appliedPackagingInfo": Field("AppliedPackagingInfo"),
        "requiredPrepTime": text(),
        "numberOfGuests": integer(),
        "createdInTestMode": Field("boolean"),
        "pricingFeatures": choice("TAXESV2 TAXESV3", many=True),
        **_refused("approvalStatus source displayNumber voided deleted duration businessDate"),
        **_refused("voidDate voidBusinessDate restaurantService serviceArea excessFood"),
        **_refused("estimatedFulfillmentDate channelGuid marketplaceFacilitatorTaxInfo"),
    },
    "Check": {
        **_OWN,
        "selections": many("Selection", required=True),
        "payments": many("Payment"),
        "appliedDiscounts": many("AppliedDiscount"),
        "appliedServiceCharges": many("AppliedServiceCharge"),
        "customer": Field("Customer"),
        "tabName": text(255),
        "displayNumber": text(),
        **_fields("boolean", "taxExempt deleted"),
        "totalAmount": Field("number"),
        "openedBy": Field("ExternalReference"),
        **_dates(_DATES),
        **_fields("Device", "createdDevice lastModifiedDevice"),
        **_refused("amount taxAmount paymentStatus voided voidDate voidBusinessDate duration"),
        **_refused("appliedLoyaltyInfo"),
    },
    "Selection": {
        **_SELECTION,
        "item": Field("ConfigReference", required=True),
        "quantity": Field("number", required=True),
        "displayName": text(),
    },
    # A selection in ``modifiers``: a special request has words alone, at most 1000 characters
    # ("Specifying modifiers and instructions for menu item selections").
    "Modifier": {
        **_SELECTION,
        "item": Field("ConfigReference"),
        "quantity": Field("number"),
        "displayName": text(1000),
    },
    "Payment": {
        **_OWN,
        "guid": text(pattern=GUID),
        "type": choice(
            "CASH CREDIT GIFTCARD HOUSE_ACCOUNT REWARDCARD LEVELUP TOAST_SV OTHER UNDETERMINED",
            required=True,
        ),
        "amount": Field("number", required=True),
        "tipAmount": Field("number", required=True),
        "amountTendered": Field("number"),
        "otherPayment": Field("ExternalReference"),
        **_dates("paidDate"),
        **_fields("Device", "createdDevice lastModifiedDevice"),
        **_refused("paidBusinessDate cardEntryMode cardType first6Digits last4Digits cashDrawer"),
        **_refused("originalProcessingFee server refundStatus refund paymentStatus voidInfo"),
        **_refused("houseAccount mcaRepaymentAmount cardPaymentId orderGuid checkGuid"),
        **_refused("networkTransactionIdentifier tenderTransactionGuid"),
    },
    "Customer": {
        **_required("firstName lastName phone"),
        "email": text(53, required=True),
        **_fields("text", "entityType phoneCountryCode"),
        **_refused("guid"),
    },
    "DeliveryInfo": {
        **_required("address1 city zipCode"),
        "state": text(required=True, pattern="[A-Z]{2}"),
        **_fields("text", "address2 administrativeArea country notes"),
        **_fields("number", "latitude longitude"),
        **_dates("dispatchedDate"),
        "deliveryEmployee": Field("ExternalReference"),
        "deliveryState": choice("PENDING IN_PROGRESS PICKED_UP DELIVERED"),
        **_refused("deliveredDate"),
    },
    "CurbsidePickupInfo": {
        "transportDescription": text(100, required=True),
        "transportColor": text(20),
        "notes": text(100),
        "entityType": text(),
        **_refused("guid"),
    },
    "AppliedServiceCharge": {
        **_OWN,
        "serviceCharge": Field("ExternalReference", required=True),
        "chargeAmount": Field("number"),
        "serviceChargeCalculation": choice("PRE_DISCOUNT POST_DISCOUNT"),
        **_refused("chargeType name delivery takeout dineIn gratuity taxable paymentGuid"),
        **_refused("serviceChargeCategory appliedTaxes refundDetails"),
    },
    "AppliedDiscount": {
        **_OWN,
        "discount": Field("ToastReference", required=True),
        **_fields("number", "discountAmount nonTaxDiscountAmount discountPercent"),
        **_fields("text", "name appliedPromoCode"),
        "discountType": choice("BOGO PERCENT FIXED OPEN_PERCENT OPEN_FIXED FIXED_TOTAL"),
        **_refused("triggers approver processingState appliedDiscountReason comboItems"),
        **_refused("loyaltyDetails"),
    },
    "AppliedPackagingInfo": {
        "entityType": text(),
        "appliedPackagingItems": many("AppliedPackagingItem", fewest=1),
        **_refused("guid"),
    },
    "AppliedPackagingItem": {
        "entityType": text(),
        "itemConfigId": text(required=True),
        "inclusion": choice("YES NO", required=True),
        **_refused("guid itemTypes guestDisplayName"),
    },
    "UpdatePaymentRequest": {"tipAmount": Field("number", required=True)},
    # Bodies that the definition has in line.
    "DeliveryUpdate": {
        **_dates("deliveredDate dispatchedDate"),
        "deliveryState": choice("PENDING IN_PROGRESS PICKED_UP DELIVERED"),
        "deliveryEmployee": text(pattern=GUID),
        "notes": text(),
    },
    "Void": {"selections": Field("VoidAll"), "payments": Field("VoidAll")},
    "VoidAll": {"voidAll": Field("boolean")},
    # Of "Authentication".
    "Login": {
        **_required("clientId clientSecret"),
        "userAccessType": choice("TOAST_MACHINE_CLIENT", required=True),
    },
}
